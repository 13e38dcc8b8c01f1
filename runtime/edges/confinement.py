"""What a process gives up before it runs a handler that declares what it reaches, for the rest of its life.

Three layers, each of which holds what it can: the environment and descriptors lose what belongs to the database, the
kernel (`landlock.py`, `seccomp.py`) holds files and TCP ports for native code and other programs too, and a hook in
the interpreter (`egress.py`) holds names, addresses, UDP and Unix sockets for Python code. `held_by` says which of
them this machine has.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

from runtime.edges import egress, landlock, seccomp
from runtime.edges.landlock import LIST, READ, USE, WRITE, Allowed
from runtime.edges.postgres import parse_url
from runtime.model.reach import Filesystem, Origin, Reach

_DATABASE_VARIABLES = re.compile(r"(PG|POSTGRES|TENURE_DATABASE_).*")
# As libpq, SQLAlchemy and Django's libraries write it, wherever in a value it stands.
_DATABASE_URL = re.compile(
    r"(postgres(ql)?|postgis|pgsql|psycopg\w*|cockroach(db)?)(\+\w+)?://|\b(password|passwd)\s*=",
    re.IGNORECASE,
)
_SYSTEM = (  # what programs and libraries open to work at all; nothing in it is a secret
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/proc", "/sys/devices/system", "/sys/fs/cgroup",
    "/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/etc/crypto-policies", "/etc/alternatives", "/etc/fonts",
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload",
    "/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/gai.conf",
    "/etc/services", "/etc/protocols", "/etc/hostname", "/etc/passwd", "/etc/group",
    "/etc/localtime", "/etc/timezone", "/etc/mime.types", "/etc/os-release", "/etc/machine-id",
)  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_SOCKET_DIRECTORIES = ("/var/run/postgresql", "/tmp")  # noqa: S108 - where libpq looks without a host


def confine(kind: str, reach: Reach, url: str) -> None:
    """Keep from this process what a kind has not declared. `url` is the database's.

    Raises:
        FileNotFoundError: a declared path is not there.
        OSError: the kernel refuses, though it has Landlock.
    """
    origins = reach.egress
    if not reach.database:
        _forget_database(url)
    elif origins is not None:
        origins += database_origins(url)
    landlock.restrict(
        None if reach.filesystem is None else list(_files(reach.filesystem)),
        None if origins is None else {origin.port for origin in origins if origin.port},
        alone=origins is not None,
    )
    if origins is not None:
        if landlock.abi() >= landlock.PORTS_ABI:
            seccomp.refuse_other_ways()
        egress.install(kind, origins)


def held_by() -> str:
    """Who holds which declaration on this machine, in words."""
    known = landlock.abi()
    ports = "TCP ports of egress by the kernel, its hosts" if known >= landlock.PORTS_ABI else "egress only"
    files = "by the kernel" if known >= landlock.FILES_ABI else "by nobody: this kernel has no Landlock"
    return f"{ports} inside Python; filesystem {files}"


def is_held() -> bool:
    """Whether the kernel holds all that it is to hold."""
    return landlock.abi() >= landlock.PORTS_ABI


def database_origins(url: str) -> tuple[Origin, ...]:
    """Where libpq connects to for a URL: its hosts, else those of the environment, else the usual sockets."""
    found = parse_url(url)

    def given(key: str, variable: str) -> list[str]:
        return str(found.get(key) or os.environ.get(variable, "")).split(",")

    hosts = given("host", "PGHOST")
    addresses = given("hostaddr", "PGHOSTADDR")
    ports = [int(port or 5432) for port in given("port", "PGPORT")]
    origins = []
    for number in range(max(len(hosts), len(addresses))):
        port = ports[number if number < len(ports) else 0]
        for ends in (hosts, addresses):
            end = ends[number] if number < len(ends) else ""
            if end.startswith(("/", "@")):
                origins.append(Origin("the database", end))
            elif end:
                origins.append(Origin("the database", end, port))
    return tuple(origins) or tuple(Origin("the database", path) for path in _SOCKET_DIRECTORIES)


def _forget_database(url: str) -> None:
    passwords = {parse_url(url).get("password"), os.environ.get("PGPASSWORD")} - {""}
    for name, value in list(os.environ.items()):
        if _DATABASE_VARIABLES.fullmatch(name) or _DATABASE_URL.search(value) or value in passwords:
            del os.environ[name]


def _files(declared: Filesystem) -> Iterator[Allowed]:
    """What is declared, what Python and its programs need, and the code that the worker has loaded."""
    for path in declared.read:
        yield Allowed(path, READ)
    for path in declared.write:
        yield Allowed(path, WRITE)
    for path in (*_SYSTEM, *{sys.prefix, sys.base_prefix, sys.exec_prefix}, *_loaded()):
        yield Allowed(path, READ, needed=False)
    for path in _DEVICES:
        yield Allowed(path, USE, needed=False)
    for path in sys.path:
        yield Allowed(
            path or ".", LIST, needed=False
        )  # names of modules; what is in them only if it is loaded


def _loaded() -> set[str]:
    """The packages and modules of the top level that are imported, wherever they are."""
    found: set[str] = set()
    for name, module in list(sys.modules.items()):
        if "." in name:
            continue
        directories = list(getattr(module, "__path__", ()))
        file = getattr(module, "__file__", None)
        found.update(map(str, directories or ([file] if file else ())))
    return found
