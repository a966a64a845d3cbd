"""``recall mcp``: an agent's records as tools of the Model Context Protocol, over stdin and stdout or HTTP.

Both loops are our own: the official SDK takes half a second and 60 MB to import,
and neither needs any of it. In the tests that SDK is the client.

``serve`` owns the process (streams, signals, threads), or with --http ``http``
does, with ``connection``, ``endpoint`` and ``sessions``. ``framing`` makes messages
of bytes, ``protocol`` answers them, ``tools`` is the table of tools that
``handlers`` carry out in a ``session``.
"""
