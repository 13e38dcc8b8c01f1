"""The SMTP server of a test, which is a process, as the test sees it."""

from __future__ import annotations

import email
import email.policy
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from typing import Any

from handlers.mailer import Mailer, Transport
from tests.helpers.places import ROOT

TO = "someone@example.org"


class Server:
    """The server's ports by the way they behave, and what it took over."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._told = process.stdout
        self.ports: dict[str, int] = json.loads(self._told.readline())
        self.raw = ""  # of the last message that was taken over

    def mailer(self, way: str = "fine", **given: Any) -> Mailer:
        transport = Transport("127.0.0.1", self.ports[way], "none", "app@example.com", timeout_s=5.0)
        return Mailer(transport._replace(**given))

    def taken(self) -> EmailMessage:
        """The next message that was taken over."""
        told = json.loads(self._told.readline())
        assert told["to"] == [TO]
        self.raw = told["text"]
        return email.message_from_string(self.raw, policy=email.policy.default)


@contextmanager
def running(certificate: str = "") -> Iterator[Server]:
    """A server; `certificate` is the path of one, for STARTTLS."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.helpers.smtp_server", certificate]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        yield Server(process)
        process.kill()
