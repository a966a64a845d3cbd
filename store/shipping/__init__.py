"""Shipping: the log in a bucket, where it survives the machine and where the lease is decided.

The modules, from the ground up: ``bucket`` (the interface to an object store) and
``s3`` (its implementation), ``head`` and ``segment`` (the forms of the objects),
``protocol`` (every decision, as pure functions), ``shipper`` (the reads and
conditional writes that carry the decisions out), ``backend`` (a store that ships).
"""
