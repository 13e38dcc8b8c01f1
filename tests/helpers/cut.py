"""A wire to the database that can be cut: a proxy that stops forwarding, or closes, when it is told to."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit


class Cut:
    """Forwards TCP connections to the Unix socket of a libpq URL, one thread for all of them."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        self._target = f"{query['host'][0]}/.s.PGSQL.{query['port'][0]}"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = (
            f"postgresql://tenure@127.0.0.1:{self._listener.getsockname()[1]}{parts.path}?sslmode=disable"
        )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._peers: dict[socket.socket, socket.socket] = {}
        self._lock = threading.Lock()
        self._flowing = True
        self._ending = False
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def stop(self) -> None:
        """Forward nothing more, and close nothing."""
        self._flowing = False
        self._wake.send(b"!")

    def resume(self) -> None:
        self._flowing = True
        self._wake.send(b"!")

    def close(self) -> None:
        self._ending = True
        self._wake.send(b"!")
        self._thread.join()

    def _serve(self) -> None:
        while not self._ending:
            if not self._flowing:
                self._woken.recv(100)
                continue
            for key, _ in self._selector.select():
                self._on(key.fileobj)
        for sock in [self._listener, self._wake, self._woken, *self._peers]:
            sock.close()
        self._selector.close()

    def _on(self, sock: object) -> None:
        assert isinstance(sock, socket.socket)
        if sock is self._woken:
            sock.recv(100)
        elif sock is self._listener:
            near, _ = sock.accept()
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._target)
            self._peers |= {near: far, far: near}
            self._selector.register(near, selectors.EVENT_READ)
            self._selector.register(far, selectors.EVENT_READ)
        elif sock in self._peers:
            try:
                data = sock.recv(65536)
                self._peers[sock].sendall(data)
            except OSError:
                data = b""
            if not data:
                for end in (sock, self._peers.pop(sock)):
                    self._peers.pop(end, None)
                    self._selector.unregister(end)
                    end.close()


@contextlib.contextmanager
def cut_in(url: str) -> Iterator[Cut]:
    wire = Cut(url)
    try:
        yield wire
    finally:
        wire.close()
