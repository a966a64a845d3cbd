"""The story that ``recall demo`` tells: an agent is killed while it sends an email, and one email is sent.

``mail`` is a small real SMTP server and how to talk to it, ``worker`` the
agent's program, ``story`` starts, kills and counts.
"""
