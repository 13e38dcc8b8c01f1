"""Where Python code of this process may connect to: refused with the origin's name, before a packet leaves.

An audit hook of the interpreter sees names as they are looked up and addresses as they are connected or sent to. It
cannot be taken out again, and forks inherit it; programs that are started, and C code that has sockets of its own,
know nothing of it: they are held by the kernel (`landlock.py`), to the ports.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath
from typing import Any

from runtime.errors import EgressRefused
from runtime.model.reach import UNIX, Origin, canonical_host

_INTERNET = (socket.AF_INET, socket.AF_INET6)
_FAMILIES = (-1, *_INTERNET, socket.AF_UNIX, socket.AF_NETLINK, socket.AF_ALG)  # -1: as its descriptor says


def install(kind: str, origins: Iterable[Origin]) -> None:
    """Refuse all other origins from now on, until this process ends."""
    _Gate(kind, origins).install()


class _Gate:
    def __init__(self, kind: str, origins: Iterable[Origin]) -> None:
        self._kind = kind
        self._ports: dict[str, set[int]] = {}  # by host
        self._sockets: list[PurePosixPath] = []
        for origin in origins:
            if origin.port:
                self._ports.setdefault(origin.host, set()).add(origin.port)
            else:
                self._sockets.append(PurePosixPath(origin.host))
        self._addresses: dict[str, set[str]] = {host: set() for host in self._ports}
        self._look_up = socket.getaddrinfo
        self._checks: dict[str, Callable[..., None]] = {
            "socket.getaddrinfo": self._check_name,
            "socket.gethostbyname": self._check_name,
            "socket.gethostbyaddr": self._check_name_of,
            "socket.getnameinfo": lambda address: self._check_name_of(address[0]),
            "socket.__new__": self._check_family,
            "cpython.PyInterpreterState_New": self._refuse_interpreter,
            "socket.connect": self._check_address,
            "socket.sendto": self._check_address,
            "socket.sendmsg": self._check_address,
        }

    def install(self) -> None:
        socket.getaddrinfo = self._getaddrinfo  # its answers say which addresses a listed name has
        sys.addaudithook(self._hear)

    def _hear(self, event: str, words: tuple[Any, ...]) -> None:
        check = self._checks.get(event)
        if check is not None:
            check(*words)

    def _getaddrinfo(self, host: Any, *words: Any, **named: Any) -> Any:
        found = self._look_up(host, *words, **named)
        name = _text(host)
        if name in self._addresses:
            self._addresses[name] |= {canonical_host(each[4][0]) for each in found}  # type: ignore[arg-type]
        return found

    def _check_name(self, host: Any, port: Any = None, *_: object) -> None:
        """Looking up a name already tells it to others; an address needs no look-up, and our own name tells nothing."""
        name = _text(host)
        if name and name not in self._ports and not _is_address(name) and name != _text(socket.gethostname()):
            raise EgressRefused(self._kind, f"{name}:{port}" if port else name)

    def _check_name_of(self, host: Any) -> None:
        """Looking up the name of an address tells the address."""
        address = _text(host)
        if not _is_address(address):
            self._check_name(host)
        elif address not in self._ports and not any(address in known for known in self._addresses.values()):
            raise EgressRefused(self._kind, address)

    def _check_family(self, _socket: socket.socket, family: int, *_: object) -> None:
        """Other sockets than these send without being connected, such as whole packets to a device."""
        if family not in _FAMILIES:
            raise EgressRefused(self._kind, f"a socket of family {family}")

    def _refuse_interpreter(self) -> None:
        """Another interpreter in this process would have no hook."""
        raise EgressRefused(self._kind, "anything from another interpreter")

    def _check_address(self, sock: socket.socket, address: Any) -> None:
        if address is None:  # where it is connected to already
            return
        if sock.family in _INTERNET:
            host, port = _text(address[0]), address[1]
            if not self._is_listed(host, port):
                raise EgressRefused(self._kind, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
            return
        path = os.fsdecode(address) if isinstance(address, str | bytes) else repr(address)
        if sock.family != socket.AF_UNIX or not self._is_below(path):
            raise EgressRefused(self._kind, f"{UNIX}{path}" if sock.family == socket.AF_UNIX else path)

    def _is_below(self, path: str) -> bool:
        real = PurePosixPath(os.path.realpath(path)) if path.startswith("/") else PurePosixPath(path)
        return any(real.is_relative_to(os.path.realpath(listed)) for listed in self._sockets)

    def _is_listed(self, host: str, port: int) -> bool:
        if port in self._ports.get(host, ()):
            return True
        names = [name for name, ports in self._ports.items() if port in ports]
        if any(host in self._addresses[name] for name in names):
            return True
        for name in names:  # looked up by other means than ours
            with contextlib.suppress(OSError):
                self._getaddrinfo(name, port)
        return any(host in self._addresses[name] for name in names)


def _text(host: Any) -> str:
    if isinstance(host, bytes | bytearray):
        host = host.decode("ascii", "backslashreplace")
    return canonical_host(host) if isinstance(host, str) else ""


def _is_address(name: str) -> bool:
    for family in _INTERNET:
        with contextlib.suppress(OSError):
            socket.inet_pton(family, name)
            return True
    return False
