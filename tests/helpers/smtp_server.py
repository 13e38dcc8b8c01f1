"""A real SMTP server as a process: for each way to misbehave a port of its own, told as one JSON object at the start.

What it took over, on any port, it tells as JSON too, one line a message: the port's name and the raw text.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult

DROPS = ("banner", "ehlo", "starttls", "mail", "rcpt", "data", "text", "end", "quit")
SAYS = {  # way: the command, and the answer to it
    "refuses mail": ("MAIL", "550 5.7.1 not you"),
    "refuses rcpt": ("RCPT", "550 5.1.1 <someone@example.org> is nobody"),
    "defers rcpt": ("RCPT", "450 4.2.0 later, <someone@example.org>"),
    "refuses data": ("DATA", "554 5.5.1 no"),
    "refuses text": ("end", "554 5.7.1 spam"),
    "defers text": ("end", "451 4.3.0 disk full"),
    "babbles": ("end", "what?"),
    "never answers": ("end", ""),
    "never greets": ("banner", ""),
}
WAYS = ("fine", "login", "starttls", *(f"drops {stage}" for stage in DROPS), *SAYS)


class Session(SMTP):
    """One connection on the port of one way."""

    way = "fine"

    def __init__(self, *given: Any, **named: Any) -> None:
        if self.way == "login":
            named |= {"authenticator": _let_in, "auth_require_tls": False, "auth_required": True}
        if self.way.endswith("starttls") and len(sys.argv[1]) > 0:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(sys.argv[1])
            named |= {"authenticator": _let_in, "tls_context": context, "require_starttls": True}
        super().__init__(self, *given, **named)
        for command in ("EHLO", "STARTTLS", "MAIL", "RCPT", "DATA", "QUIT"):
            self._method_of(command)

    def _method_of(self, command: str) -> None:
        usual = getattr(self, f"smtp_{command}")

        async def method(argument: str) -> None:
            said, answer = SAYS.get(self.way, ("", ""))
            if self.way == f"drops {command.lower()}":
                self.transport.abort()
            elif self.way == "drops text" and command == "DATA":
                await self.push("354 go on")
                await self._reader.readline()
                self.transport.abort()
            elif said == command:
                await self.push(answer)
            else:
                await usual(argument)

        self._smtp_methods[command] = method

    def connection_made(self, transport: Any) -> None:
        if self.way == "drops banner":
            transport.abort()
        elif self.way != "never greets":
            super().connection_made(transport)

    async def handle_DATA(  # noqa: N802 - its name
        self, server: Any, session: Any, envelope: Any
    ) -> str:
        said, answer = SAYS.get(self.way, ("", ""))
        if said == "end":
            if not answer:
                await asyncio.sleep(3600)
            return answer
        tell({"way": self.way, "to": envelope.rcpt_tos, "text": envelope.content.decode()})
        if self.way == "drops end":
            self.transport.abort()
        return "250 ok"


def _let_in(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
    return AuthResult(success=data.password == b"right", handled=False)


def tell(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def main() -> None:
    loop = asyncio.get_running_loop()
    ports = {}
    for way in WAYS:
        cls = type("Session", (Session,), {"way": way})
        server = await loop.create_server(cls, "127.0.0.1", 0)
        ports[way] = server.sockets[0].getsockname()[1]
    tell(ports)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
