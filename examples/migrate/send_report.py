"""Mails the report: one SMTP conversation. The step's key is the Message-ID, by which the resolver finds it."""

import os
import smtplib
import sys

key = os.environ["RECALL_IDEMPOTENCY_KEY"]
message = f"""\
From: migrator@example.com
To: team@example.com
Subject: The migration is done
Message-ID: <{key}@example.com>

{sys.argv[1]} commits are in the repository.
"""
with smtplib.SMTP("127.0.0.1", int(os.environ["SMTP_PORT"]), local_hostname="localhost", timeout=30) as server:
    server.sendmail("migrator@example.com", ["team@example.com"], message)
