"""Goal: what a kind does not declare cannot be reached. Method: forks that confine themselves and then try."""

from __future__ import annotations

import ctypes
import errno
import importlib
import mmap
import os
import platform
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.edges import landlock, seccomp
from runtime.edges.confinement import confine, database_origins
from runtime.errors import EgressRefused
from runtime.model.reach import Filesystem, Reach, parse_origin
from tests.helpers.forks import in_fork, refusal

URL = "postgresql://u:secret@127.0.0.1:5/d"
SOCKET_I386 = 359  # the number of that call for 32-bit programs

_INTERPRETERS = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"

needs_files = pytest.mark.skipif(landlock.abi() < landlock.FILES_ABI, reason="no Landlock in this kernel")
needs_ports = pytest.mark.skipif(landlock.abi() < landlock.PORTS_ABI, reason="no Landlock of ports here")
needs_scopes = pytest.mark.skipif(landlock.abi() < landlock.SCOPES_ABI, reason="no Landlock of signals here")


@pytest.fixture
def server() -> Iterator[int]:
    """A port of 127.0.0.1 that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.fixture
def other() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def egress(*origins: str) -> Reach:
    return Reach(egress=tuple(map(parse_origin, origins)))


def connect(host: str, port: int) -> Callable[[], Any]:
    return lambda: socket.create_connection((host, port)).close()


def connect_natively(port: int) -> int:
    """The error number of a connect that Python does not see; 0: it has worked."""
    with socket.socket() as sock:
        address = socket.AF_INET.to_bytes(2, sys.byteorder) + port.to_bytes(2, "big") + bytes([127, 0, 0, 1])
        libc = ctypes.CDLL(None, use_errno=True)
        return ctypes.get_errno() if libc.connect(sock.fileno(), address + bytes(8), 16) else 0


# -- files


@needs_files
def test_only_declared_files_are_opened_and_only_declared_ones_changed(tmp_path: Path) -> None:
    for name in ("in", "out", "else"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / "one").write_text("one")
    (tmp_path / "link").symlink_to(tmp_path / "else" / "file")
    files = Filesystem(read=(str(tmp_path / "in"), str(tmp_path / "one")), write=(str(tmp_path / "out"),))

    def tried() -> dict[str, str]:
        confine("k", Reach(filesystem=files), URL)
        inside, outside = tmp_path / "in" / "file", tmp_path / "out" / "file"
        return {
            "read": inside.read_text(),
            "read one": (tmp_path / "one").read_text(),
            "write": refusal(lambda: outside.write_text("new")),
            "make": refusal((tmp_path / "out" / "a").mkdir),
            "move": refusal(lambda: outside.rename(tmp_path / "out" / "a" / "moved")),
            "remove": refusal(lambda: shutil.rmtree(tmp_path / "out" / "a")),
            "read else": refusal((tmp_path / "else" / "file").read_text),
            "read link": refusal((tmp_path / "link").read_text),
            "list else": refusal(lambda: os.listdir(tmp_path / "else")),
            "write in": refusal(lambda: inside.write_text("new")),
            "cut in": refusal(lambda: os.truncate(inside, 0)),
            "remove in": refusal(inside.unlink),
            "make else": refusal((tmp_path / "else" / "b").mkdir),
            "device": refusal(lambda: os.mknod(tmp_path / "out" / "dev", 0o20666, os.makedev(1, 3))),
            "program": subprocess.run(
                ["cat", str(tmp_path / "else" / "file")], capture_output=True, check=False
            ).stdout.decode(),
        }

    denied = ("read else", "read link", "list else", "write in", "cut in", "remove in", "make else", "device")
    assert in_fork(tried) == {
        "read": "in", "read one": "one", "write": "", "make": "", "move": "", "remove": "", "program": "",
    } | dict.fromkeys(denied, "PermissionError")  # fmt: skip
    assert (tmp_path / "in" / "file").read_text() == "in"


@needs_files
def test_python_still_works_with_no_file_declared() -> None:
    def tried() -> list[str]:
        confine("k", Reach(filesystem=Filesystem()), URL)
        import wave

        import tests.helpers.cut  # noqa: F401 - of a package that is loaded, a module that is not

        return [
            wave.__name__,
            subprocess.run(
                [sys.executable, "-c", "print(1)"], capture_output=True, check=True
            ).stdout.decode(),
            refusal(lambda: os.urandom(1) + Path("/dev/null").read_bytes()),
            refusal(lambda: Path("/etc/shadow").read_bytes()),
        ]

    sys.modules.pop("tests.helpers.cut", None)
    assert in_fork(tried) == ["wave", "1\n", "", "PermissionError"]


@needs_files
def test_of_what_modules_are_looked_for_in_only_the_names_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules, here = tmp_path / "modules", tmp_path / "here"
    modules.mkdir()
    here.mkdir()
    for name in ("loaded_before", "not_loaded"):
        (modules / f"{name}.py").write_text("it = 1")
    monkeypatch.syspath_prepend(str(modules))
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # the current directory

    def tried() -> list[object]:
        importlib.import_module("loaded_before")
        confine("k", Reach(filesystem=Filesystem()), URL)
        return [
            sorted(name for name in os.listdir(modules) if name.endswith(".py")),
            os.listdir(here),
            refusal(lambda: os.listdir(tmp_path)),
            refusal((modules / "loaded_before.py").read_text),
            refusal((modules / "not_loaded.py").read_text),
            refusal(lambda: importlib.import_module("not_loaded")),
        ]

    names = ["loaded_before.py", "not_loaded.py"]
    told = in_fork(tried)
    assert told == [names, [], "PermissionError", "", "PermissionError", "PermissionError"], (
        "an import says what it may not read, not that there is no such module"
    )


@needs_files
def test_a_declared_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")

    def tried() -> str:
        try:
            confine("k", Reach(filesystem=Filesystem(write=(missing,))), URL)
        except FileNotFoundError as error:
            return str(error.filename)
        return ""

    assert in_fork(tried) == missing


@needs_scopes
def test_processes_outside_are_neither_signalled_nor_read() -> None:
    parent = os.getpid()

    def tried() -> list[str]:
        confine("k", Reach(rights=()), URL)
        return [
            refusal(lambda: os.kill(parent, 0)),
            refusal(lambda: Path(f"/proc/{parent}/mem").open("rb")),
            refusal(lambda: os.readlink(f"/proc/{parent}/fd/0")),
            refusal(lambda: os.kill(os.getpid(), 0)),
        ]

    assert in_fork(tried) == ["PermissionError"] * 3 + [""]


@pytest.mark.parametrize("known", range(landlock.abi() + 1))
def test_older_kernels_hold_what_they_know(
    known: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: int
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(landlock, "abi", lambda: known)

    def tried() -> list[object]:
        confine("k", Reach(filesystem=Filesystem(), egress=()), URL)
        return [
            refusal((tmp_path / "file").read_bytes),
            connect_natively(server),
            refusal(lambda: os.kill(os.getppid(), 0)),
            refusal(connect("127.0.0.1", server)),
        ]

    file, port, sent, by_python = in_fork(tried)
    assert (file == "PermissionError") == (known >= landlock.FILES_ABI)
    assert (port != 0) == (known >= landlock.PORTS_ABI)
    assert (sent == "PermissionError") == (known >= landlock.SCOPES_ABI)
    assert by_python == "EgressRefused"


# -- egress


def test_only_declared_origins_are_connected_to(server: int, other: int) -> None:
    def tried() -> list[str]:
        confine("k", egress(f"tcp://127.0.0.1:{server}"), URL)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            return [
                refusal(connect("127.0.0.1", server)),
                refusal(connect("::ffff:127.0.0.1", server)),
                refusal(connect("127.0.0.1", other)),
                refusal(connect("127.0.0.2", server)),
                refusal(connect("example.com", server)),
                refusal(lambda: socket.gethostbyname("example.com")),
                refusal(lambda: datagrams.sendto(b"x", ("127.0.0.1", other))),
                refusal(lambda: datagrams.sendmsg([b"x"], [], 0, ("127.0.0.1", other))),
                refusal(lambda: datagrams.connect(("127.0.0.1", other))),
                refusal(lambda: datagrams.sendto(b"x", ("127.0.0.1", server))),
            ]

    assert in_fork(tried) == ["", "", *["EgressRefused"] * 7, ""]


def test_no_way_of_python_leads_around_the_declared_origins(server: int, other: int) -> None:
    """Ways that a plain connect does not take: other families, reverse look-ups, interpreters."""
    ways: dict[str, Callable[[], Any]] = {
        "packets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
        "the name of an address": lambda: socket.gethostbyaddr("192.0.2.1"),
        "the name of another's end": lambda: socket.getnameinfo(("192.0.2.1", 80), 0),
        "an interpreter": importlib.import_module(_INTERPRETERS).create,
    }

    def tried() -> dict[str, str]:
        confine("k", egress(f"tcp://127.0.0.1:{server}"), URL)
        return {way: refusal(act) for way, act in ways.items()}

    found = in_fork(tried)
    assert found.pop("an interpreter") != "", "it would have no hook"
    assert set(found.values()) == {"EgressRefused"}, found


def test_our_own_name_is_told_to_nobody_and_may_be_looked_up() -> None:
    def tried() -> str:
        confine("k", egress("tcp://127.0.0.1:1"), URL)
        try:
            socket.gethostbyname(socket.gethostname())
        except EgressRefused as error:
            return str(error)
        except socket.gaierror:
            return ""  # it has no address here
        return ""

    assert in_fork(tried) == "", "smtplib asks for it, for its greeting"


def test_a_name_stands_for_the_addresses_it_has(server: int) -> None:
    def tried() -> list[str]:
        resolve = socket.getaddrinfo
        confine("k", egress(f"http://localhost:{server}"), URL)
        direct = lambda: socket.socket().connect(("127.0.0.1", server))  # noqa: E731
        unseen = [refusal(direct)]  # before anybody has looked the name up
        resolve("localhost", server)
        return [*unseen, refusal(connect("LOCALHOST", server)), refusal(direct)]

    assert in_fork(tried) == ["", "", ""]


def test_the_error_names_kind_and_origin() -> None:
    def tried() -> str:
        confine("mailing", egress(), URL)
        try:
            socket.create_connection(("api.example.com", 443))
        except OSError as error:
            return str(error)
        return ""

    assert in_fork(tried) == (
        "kind 'mailing' may not connect to api.example.com:443; add its origin to egress=(…) of @job"
    )


def test_unix_sockets_are_origins_too(tmp_path: Path) -> None:
    for name in ("declared", "other"):
        (tmp_path / name).mkdir()
    paths = [str(tmp_path / name / "s") for name in ("declared", "other")]
    listening = [socket.socket(socket.AF_UNIX) for _ in paths]
    for sock, path in zip(listening, paths, strict=True):
        sock.bind(path)
        sock.listen()

    def tried() -> list[str]:
        confine("k", egress(f"unix:{tmp_path}/declared"), URL)
        (tmp_path / "declared" / "link").symlink_to(paths[1])
        ends = [*paths, str(tmp_path / "declared" / "link"), "\0abstract"]
        return [refusal(lambda end=end: socket.socket(socket.AF_UNIX).connect(end)) for end in ends]

    assert in_fork(tried) == ["", *["EgressRefused"] * 3]
    for sock in listening:
        sock.close()


@needs_ports
def test_native_code_and_programs_are_held_to_the_ports(server: int, other: int) -> None:
    script = f"import socket; socket.create_connection(('127.0.0.1', {other}))"

    def tried() -> list[object]:
        confine("k", egress(f"tcp://127.0.0.1:{server}"), URL)
        program = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
        return [connect_natively(server), connect_natively(other), b"Permission denied" in program.stderr]

    assert in_fork(tried) == [0, 13, True]


@needs_ports
@pytest.mark.skipif(not seccomp.is_known(), reason="the system calls of this machine are not known")
def test_a_program_has_no_other_way_to_a_port_than_the_one_that_the_kernel_asks_for(
    server: int, other: int
) -> None:
    script = """
import ctypes, socket, sys

def tried(act):
    try: act()
    except OSError as error: return error.errno
    return 0

def fast(send):
    with socket.socket() as sock: send(sock)

allowed, refused = (("127.0.0.1", int(port)) for port in sys.argv[1:])
print([
    tried(lambda: socket.create_connection(allowed)),
    tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", refused)),
    tried(lambda: socket.create_connection(refused)),
    tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).connect(refused)),
    tried(lambda: fast(lambda sock: sock.sendto(b"x", socket.MSG_FASTOPEN, refused))),
    tried(lambda: fast(lambda sock: sock.sendmsg([b"x"], [], socket.MSG_FASTOPEN, refused))),
])
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(425, 1, None)
print(ctypes.get_errno())
"""

    def tried() -> str:
        confine("k", egress(f"tcp://127.0.0.1:{server}"), URL)
        words = [sys.executable, "-c", script, str(server), str(other)]
        return subprocess.run(words, capture_output=True, check=True, text=True).stdout

    errors = [0, 0, errno.EACCES, errno.EPROTONOSUPPORT, errno.EOPNOTSUPP, errno.EOPNOTSUPP]
    assert in_fork(tried).splitlines() == [str(errors), str(errno.ENOSYS)]


@pytest.mark.parametrize(
    ("url", "ends"),
    [
        ("postgresql://u:p@db.example/x", [("db.example", 5432)]),
        ("postgresql://a:1,b:2/x", [("a", 1), ("b", 2)]),
        ("host=a,b port=7", [("a", 7), ("b", 7)]),
        ("host=a hostaddr=10.0.0.1", [("a", 5432), ("10.0.0.1", 5432)]),
        ("host=/run/pg port=7", [("/run/pg", 0)]),
        ("dbname=x", [("/var/run/postgresql", 0), ("/tmp", 0)]),
    ],
)
def test_the_database_is_where_its_url_says(
    url: str, ends: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("PGHOST", "PGHOSTADDR", "PGPORT"):
        monkeypatch.delenv(variable, raising=False)
    assert [(each.host, each.port) for each in database_origins(url)] == ends


def test_the_database_may_be_reached_with_a_right_for_it_and_else_not(server: int) -> None:
    def tried(rights: tuple[str, ...]) -> list[object]:
        confine("k", Reach(rights=rights, egress=()), f"postgresql://127.0.0.1:{server}/x")
        return [refusal(connect("127.0.0.1", server)), connect_natively(server)]

    assert in_fork(lambda: tried(("a.read",))) == ["", 0]
    assert in_fork(lambda: tried(()))[0] == "EgressRefused"


# -- credentials


def test_without_a_right_for_the_database_the_environment_holds_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = {
        "TENURE_DATABASE_URL": URL,
        "TENURE_DATABASE__URL": URL,
        "PGPASSWORD": "secret",
        "PGSERVICE": "x",
        "DATABASE_URL": URL,
        "SQLALCHEMY_URL": "postgresql+psycopg://u:secret@h/d",
        "DSN": "host=h password=secret",
        "LINES": "host=h\npassword=x",
        "JSON": '{"url": "postgresql://h/d"}',
        "JDBC": "jdbc:postgresql://h/d",
        "DJANGO": "postgis://h/d",
        "POSTGRES_PASSWORD": "other",
        "PG_PASSWORD": "other",
        "DB_PASSWORD": "secret",
    }
    for name, value in {**theirs, "PLAIN": "kept", "API_URL": "https://a/b"}.items():
        monkeypatch.setenv(name, value)

    def left(rights: tuple[str, ...] | None) -> list[str]:
        confine("k", Reach(rights=rights, egress=()), URL)
        child = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
        return sorted(
            name for name in (*theirs, "PLAIN", "API_URL") if f"{name}=" in child and name in os.environ
        )

    assert in_fork(lambda: left(("mail.send",))) == ["API_URL", "PLAIN"]
    assert len(in_fork(lambda: left(("a.write",)))) == len(theirs) + 2


@needs_ports
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the machine code below is for x86-64")
def test_a_32_bit_call_is_no_way_around_the_filter(server: int) -> None:
    def of_32_bit(number: int, *arguments: int) -> int:
        """push rbx; mov eax, ebx, ecx, edx; int 0x80; cdqe; pop rbx; ret"""
        moves = zip(b"\xb8\xbb\xb9\xba", (number, *arguments), strict=False)
        code = b"\x53" + b"".join(struct.pack("<BI", *move) for move in moves) + b"\xcd\x80\x48\x98\x5b\xc3"
        page = mmap.mmap(-1, len(code), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(code)
        return int(ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())

    def tried() -> int:
        confine("k", egress(f"tcp://127.0.0.1:{server}"), URL)
        return of_32_bit(SOCKET_I386, socket.AF_INET, socket.SOCK_STREAM, 262)

    pid = os.fork()
    if pid == 0:
        os._exit(of_32_bit(SOCKET_I386, socket.AF_INET, socket.SOCK_STREAM, 0) < 0)
    if os.waitpid(pid, 0)[1]:
        pytest.skip("this kernel runs no 32-bit programs")
    assert in_fork(tried) == -errno.ENOSYS


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_lets_pass_what_it_does_not_know_and_nothing_of_another_architecture(machine: str) -> None:
    own, sock, sendto, sendmsg, sendmmsg = seccomp._ARCHITECTURES[machine]
    i386, fast = 0x4000_0003, 0x2000_0000

    def verdict(architecture: int, number: int, *arguments: int) -> int:
        """Of the filter, carried out as the kernel does: 0, or the error that it is answered with."""
        words = [
            number,
            architecture,
            0,
            0,
            *(word for each in (*arguments, 0, 0, 0, 0) for word in (each, 0)),
        ]
        value, at, program = 0, 0, seccomp._filter(own, sock, sendto, sendmsg, sendmmsg)
        while True:
            code, if_true, if_false, operand = program[at]
            at += 1
            match code:
                case seccomp._LOAD:
                    value = words[operand // 4]
                case seccomp._RETURN:
                    return operand & 0xFFFF if operand != seccomp._ALLOW else 0
                case seccomp._IF_EQUAL:
                    at += if_true if value == operand else if_false
                case seccomp._IF_AT_LEAST:
                    at += if_true if value >= operand else if_false
                case seccomp._IF_ANY_BIT:
                    at += if_true if value & operand else if_false
                case _:
                    raise AssertionError(code)

    assert verdict(own, sock, socket.AF_INET, socket.SOCK_STREAM, 0) == 0
    assert verdict(own, sock, socket.AF_INET, socket.SOCK_STREAM, 262) == errno.EPROTONOSUPPORT
    assert verdict(own, sendto, 3, 0, 0, 0) == 0
    assert [
        verdict(own, number, *arguments)
        for number, arguments in (
            (sendto, (3, 0, 0, fast)),
            (sendmsg, (3, 0, fast)),
            (sendmmsg, (3, 0, 0, fast)),
        )
    ] == [errno.EOPNOTSUPP] * 3
    assert verdict(own, 425) == errno.ENOSYS
    assert [verdict(own, number) for number in (0, 39, 172, 462)] == [0] * 4
    assert verdict(own, 0x4000_0000 | sock, socket.AF_INET, socket.SOCK_STREAM, 262) == errno.ENOSYS
    assert [verdict(i386, number) for number in (1, sock, 359)] == [errno.ENOSYS] * 3
