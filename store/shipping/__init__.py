"""Shipping: the log in a bucket, where it survives the machine and where the lease is decided.

The modules, from the ground up:

- ``bucket`` (the interface to an object store), ``s3`` and ``s3_faults`` (its
  implementation), ``probe`` (whether a store keeps the interface's promises),
- ``references``, ``head``, ``segment``, ``place``, ``inbox`` (the forms of the objects),
- ``protocol`` (every decision, as pure functions),
- ``fetch`` (a log out of the bucket), ``local`` (a log here, and what comes into
  it), ``packing`` (what is uploaded before a head names it), ``locking``,
- ``looking``, ``taking``, ``shipper`` (the reads and conditional writes that carry
  the decisions out), ``worker`` (its thread), ``upkeep`` (few objects, collection),
- ``backend`` (a store that ships) and ``opening`` (its bucket),
- what operators ask for: ``bringing`` with ``attaching`` and ``detaching``,
  ``syncing``, ``checking``, ``repairing``, ``evidence``, ``remote_verify``.
"""
