"""A mail server for trying the example: what it accepts becomes a file, before it says so.

    python3 mail_server.py MAILBOX PORT_FILE [SLOWNESS]

It serves one conversation after the other on a free port of 127.0.0.1, which it
writes to PORT_FILE. SLOWNESS is the longest pause before an answer, in seconds.
"""

import os
import random
import socketserver
import sys
import time
from pathlib import Path

MAILBOX, PORT_FILE = Path(sys.argv[1]), Path(sys.argv[2])
SLOWNESS = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0


class Conversation(socketserver.StreamRequestHandler):
    timeout = 10

    def say(self, line: str) -> None:
        time.sleep(random.uniform(0, SLOWNESS))
        self.wfile.write(line.encode() + b"\r\n")

    def handle(self) -> None:
        try:
            self.say("220 localhost")
            while line := self.rfile.readline():
                verb = line.strip().upper()
                if verb == b"DATA":
                    self.say("354 go on")
                    if not self.accept():
                        return
                    self.say("250 accepted")
                elif verb == b"QUIT":
                    self.say("221 bye")
                    return
                else:
                    self.say("250 ok")
        except OSError:
            return  # the other side is gone

    def accept(self) -> bool:
        """Keep the message durably; False if it was not sent to its end."""
        lines = []
        while (line := self.rfile.readline()) != b".\r\n":
            if not line:
                return False
            lines.append(line[1:] if line.startswith(b"..") else line)
        time.sleep(random.uniform(0, SLOWNESS))
        number = len(list(MAILBOX.glob("*.eml"))) + 1
        partial = MAILBOX / f"{number}.partial"
        with partial.open("wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(MAILBOX / f"{number}.eml")
        return True


MAILBOX.mkdir(parents=True, exist_ok=True)
with socketserver.TCPServer(("127.0.0.1", 0), Conversation) as server:
    written = PORT_FILE.with_suffix(".new")
    written.write_text(str(server.server_address[1]))
    written.rename(PORT_FILE)
    server.serve_forever()
