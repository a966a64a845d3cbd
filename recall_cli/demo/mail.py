"""A small SMTP server on the loopback address, and the two things that a client does with it.

It speaks enough of RFC 5321 for any mail client to deliver to it, and keeps
what it accepted. One private command, ``XSEEN ID`` (names with an X are the
standard's room for such), tells whether a message with that Message-ID came:
what a real provider answers by its search API or its log.
"""

from __future__ import annotations

import smtplib
import socketserver
import threading
from email import message_from_bytes, policy
from email.message import EmailMessage
from types import TracebackType
from typing import Literal, cast

Moment = Literal["", "before", "after"]

HOST = "127.0.0.1"
_TIMEOUT = 10.0  # seconds; nothing in the demo takes as long
_LINE_LIMIT = 1000  # bytes, RFC 5321 section 4.5.3.1.6
_MESSAGE_LIMIT = 1 << 20


class MailServer:
    """A mail server for a ``with`` block.

    Args:
        hold: the moment at which the first delivery is held up until ``go_on``:
            ``before`` the message was transmitted, or ``after`` it was
            accepted, when the sender has not been told. "" for never.

    Attributes:
        port: where it listens.
        messages: what it accepted, in order.
        held: set once a delivery is held up.
    """

    def __init__(self, hold: Moment = "") -> None:
        self.messages: list[EmailMessage] = []
        self.held = threading.Event()
        self._hold = hold
        self._go_on = threading.Event()
        self._server = _Server((HOST, 0), _Session, self)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True, name="demo-smtp")

    def __enter__(self) -> MailServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.go_on()
        self._server.shutdown()
        self._server.server_close()

    def go_on(self) -> None:
        """Lets a delivery that is held up continue, if its sender is still there."""
        self._go_on.set()

    def seen(self, message_id: str) -> bool:
        """Whether a message with this id was accepted."""
        return any(message["Message-ID"] == message_id for message in self.messages)

    def reached(self, moment: Moment) -> None:
        """Holds the session up if this is the moment to."""
        if moment == self._hold and not self.held.is_set():
            self.held.set()
            self._go_on.wait(_TIMEOUT)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], session: type[_Session], mail: MailServer) -> None:
        self.mail = mail
        super().__init__(address, session)

    def handle_error(self, request: object, client_address: object) -> None:
        """A sender that was killed leaves a broken connection; that is what the demo is about."""


class _Session(socketserver.StreamRequestHandler):
    """One connection."""

    timeout = _TIMEOUT
    sender = False
    recipients = 0

    def handle(self) -> None:
        self._say(220, "localhost recall demo")
        while (line := self.rfile.readline(_LINE_LIMIT + 2)).endswith(b"\n"):
            verb, _, rest = line.decode("ascii", "replace").strip().partition(" ")
            command = getattr(self, f"do_{verb.lower()}", None)
            if command is None:
                self._say(500, "command not recognised")
            elif command(rest.strip()):
                return

    def _say(self, code: int, text: str, *, more: bool = False) -> None:
        self.wfile.write(f"{code}{'-' if more else ' '}{text}\r\n".encode("ascii", "replace"))

    @property
    def _mail(self) -> MailServer:
        return cast(_Server, self.server).mail

    def do_helo(self, rest: str) -> None:
        self._reset()
        self._say(250, "localhost")

    def do_ehlo(self, rest: str) -> None:
        self._reset()
        self._say(250, "localhost", more=True)
        self._say(250, "8BITMIME")

    def do_mail(self, rest: str) -> None:
        if self.sender:
            self._say(503, "nested MAIL")
            return
        self._mail.reached("before")
        self.sender = True
        self._say(250, "ok")

    def do_rcpt(self, rest: str) -> None:
        if not self.sender:
            self._say(503, "MAIL first")
            return
        self.recipients += 1
        self._say(250, "ok")

    def do_data(self, rest: str) -> bool:
        if not self.recipients:
            self._say(503, "RCPT first")
            return False
        self._say(354, "end with a line that holds one dot")
        lines: list[bytes] = []
        size = 0
        while (line := self.rfile.readline()) != b".\r\n":
            size += len(line)
            if not line.endswith(b"\n"):
                return True  # the sender is gone in the middle: nothing was accepted
            if size <= _MESSAGE_LIMIT:
                lines.append(line[1:] if line.startswith(b".") else line)
        self._reset()
        if size > _MESSAGE_LIMIT:
            self._say(552, "message too large")
            return False
        self._mail.messages.append(message_from_bytes(b"".join(lines), policy=policy.SMTP))
        self._mail.reached("after")
        self._say(250, "accepted")
        return False

    def _reset(self) -> None:
        self.sender, self.recipients = False, 0

    def do_rset(self, rest: str) -> None:
        self._reset()
        self._say(250, "ok")

    def do_noop(self, rest: str) -> None:
        self._say(250, "ok")

    def do_xseen(self, rest: str) -> None:
        self._say(250, "seen") if self._mail.seen(rest) else self._say(550, "not seen")

    def do_quit(self, rest: str) -> bool:
        self._say(221, "bye")
        return True


# -- the client's side ---------------------------------------------------------------------


def message_id(key: str) -> str:
    """The id of the message that an action sends: its idempotency key, so that it can be asked for."""
    return f"<{key}@recall.example>"


def send(port: int, *, to: str, subject: str, text: str, message_id: str) -> None:
    """Delivers one message; returns once the server has said that it took it.

    Raises:
        OSError: it did not (smtplib's own errors are OSErrors).
    """
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "agent@example.com", to, subject
    message["Message-ID"] = message_id
    message.set_content(text)
    with _connected(port) as connection:
        connection.send_message(message)


def was_seen(port: int, message_id: str) -> bool | None:
    """Whether the server accepted a message with this id; None if it does not tell."""
    with _connected(port) as connection:
        code, _ = connection.docmd("XSEEN", message_id)
    return {250: True, 550: False}.get(code)


def _connected(port: int) -> smtplib.SMTP:
    # The name is given, since looking it up would ask a name server.
    return smtplib.SMTP(HOST, port, local_hostname="localhost", timeout=_TIMEOUT)
