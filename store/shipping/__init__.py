"""Shipping: an agent's log in a bucket, where it survives the machine and where the lease is decided.

Nothing is imported here: a process without a remote pays nothing for it.
"""
