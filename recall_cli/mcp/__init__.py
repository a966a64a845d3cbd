"""``recall mcp``: an agent's records as tools of the Model Context Protocol, over stdin and stdout.

The loop is our own: the official SDK takes half a second and 60 MB to import,
and stdio needs none of it. In the tests that SDK is the client.

``serve`` owns the process (streams, signals, threads), ``framing`` makes
messages of bytes, ``protocol`` answers them, ``tools`` is the table of tools
that ``handlers`` carry out in a ``session``.
"""
