"""What a kind says that it reaches: the rights it holds, the origins it connects to, the files it opens.

What is not said is not bounded. What is said is held by a process of the attempt's own, see
`edges/confinement.py`; here is only what the words mean.
"""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

import msgspec

RIGHT_BYTES = 64
LIST_MAX = 1000  # entries of one declaration
DATABASE_ACTIONS = ("read", "write")  # rights that end so are rights for the database
UNIX = "unix:"
PORTS = {
    "http": 80,
    "https": 443,
    "ws": 80,
    "wss": 443,
    "smtp": 25,
    "smtps": 465,
}  # of schemes, when none is written
_LABEL = "[a-z0-9_](?:[a-z0-9_-]*[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")  # an IPv4 address too


class Origin(msgspec.Struct, frozen=True):
    """One end that may be connected to."""

    text: str  # as it was written
    host: str  # in its canonical form; of a Unix socket its path, or a directory above it
    port: int = 0  # 0: a Unix socket


class Filesystem(msgspec.Struct, frozen=True):
    """Paths that a handler opens, absolute, each with all below it: to read and run, or to read and change."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()


class Right(msgspec.Struct, frozen=True):
    """That an attempt holds a right: what functions of an application ask for, so as not to be called without it."""

    name: str
    kind: str
    job: str


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """What a kind declares; None: nothing is said, so everything is allowed."""

    rights: tuple[str, ...] | None = None
    egress: tuple[Origin, ...] | None = None
    filesystem: Filesystem | None = None

    @property
    def database(self) -> bool:
        """It may use the database."""
        return self.rights is None or any(
            right.rpartition(".")[2] in DATABASE_ACTIONS for right in self.rights
        )

    @property
    def is_confined(self) -> bool:
        """Something has to be kept from it, so its attempts need a process of their own."""
        return not self.database or self.egress is not None or self.filesystem is not None

    @property
    def unsaid(self) -> tuple[str, ...]:
        """The declarations that are missing."""
        return tuple(name for name in ("rights", "egress", "filesystem") if getattr(self, name) is None)

    def holds(self, right: str) -> bool:
        return self.rights is None or right in self.rights


EVERYTHING = Reach()


def is_right(text: object) -> bool:
    """Whether it is written as a right: `thing.action`, visible, of at most 64 bytes."""
    if not isinstance(text, str) or not text.isprintable() or " " in text:
        return False
    return "." in text.strip(".") == text and len(text.encode()) <= RIGHT_BYTES


def parse_origin(text: str) -> Origin:
    """An origin such as `https://api.example.com`, `tcp://10.0.0.5:6379` or `unix:/run/some.sock`.

    Raises:
        ValueError: says what is wrong with it.
    """
    if text.startswith(UNIX):
        path = text.removeprefix(UNIX)
        if not path.startswith("/"):
            raise ValueError("the path of a Unix socket must be absolute")
        return Origin(text, path)
    parts = urlsplit(text)
    if not parts.scheme or not parts.hostname:
        raise ValueError("is no origin")
    if parts.path or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("has more than a scheme, a host and a port")
    port = PORTS.get(parts.scheme) if parts.port is None else parts.port
    if not port:
        raise ValueError("needs a port")
    host = canonical_host(parts.hostname)
    if not text.isprintable() or not (":" in host or _NAME.fullmatch(host)):
        raise ValueError("has neither a name nor an address for its host; write each host, there is no *")
    return Origin(text, host, port)


def canonical_host(host: str) -> str:
    """The one way to write a host's name or address."""
    host = host.rstrip(".").lower()
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        pass
    else:
        mapped = getattr(address, "ipv4_mapped", None)
        return str(mapped or address)
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode()
    except UnicodeError:
        return host


def shown(reach: Reach) -> str:
    """The declarations in words, each with a comma before it; empty: there are none."""
    said = []
    if reach.rights is not None:
        said.append(f"rights {' '.join(reach.rights) or 'none'}")
    if reach.egress is not None:
        said.append(f"egress {' '.join(each.text for each in reach.egress) or 'none'}")
    if reach.filesystem is not None:
        said.append(f"reads {' '.join(reach.filesystem.read) or 'nothing'}")
        said.append(f"writes {' '.join(reach.filesystem.write) or 'nothing'}")
    return "".join(f", {each}" for each in said)
