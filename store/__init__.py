"""The engine of Recall: epoch-fenced, append-only records of agents.

The engine never prints and never parses a command line; its front doors live
in ``recall_cli``. Nothing is imported here, so that a process pays only for
the parts that it uses.
"""
