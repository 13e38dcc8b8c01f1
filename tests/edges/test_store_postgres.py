"""What only the PostgreSQL store has: its plans, its connection, callers' transactions, notifications."""

from __future__ import annotations

import itertools
import json
import random
import select
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, nullcontext
from datetime import UTC, datetime, timedelta

import msgspec
import psycopg
import pytest
from psycopg.rows import dict_row

from runtime.edges import migrate, postgres, statements
from runtime.edges.ids import canonical, new_id, new_ids
from runtime.edges.postgres import LARGE_ROWS, PostgresStore
from runtime.edges.pushing import COPY_ROWS, LARGE, PUSH_CHARACTERS, PUSH_ROWS, _parts, push_all, push_new
from runtime.errors import StoreUnavailable
from runtime.model.jobs import HISTORY_LIMIT, Claim, Failure, Kick, Lease, NewSchedule, State
from tests.edges.conftest import Clock
from tests.helpers.jobs import HOLDER, new, settlement, want
from tests.helpers.waiting import wait_for

STATEMENTS = {
    name: sql
    for module in (statements, migrate)
    for name, sql in vars(module).items()
    if name.isupper() and isinstance(sql, str) and "\n--" in sql
}
TEMPLATES = {name for name, sql in STATEMENTS.items() if "{table}" in sql}  # see test_worktables.py
EXPLAINABLE = sorted(set(STATEMENTS) - {"LISTEN", "PREPARE", "COPY", "COPY_LARGE", "HOLD"} - TEMPLATES)


Opener = Callable[..., PostgresStore]


class Nulls(dict):
    def __missing__(self, key: str) -> None:
        return None


@pytest.fixture
def opened() -> Iterator[Opener]:
    """Opens stores, and closes them after the test."""
    with ExitStack() as stack:
        yield lambda *args, **given: stack.enter_context(closing(PostgresStore(*args, **given)))


@pytest.fixture
def conn(clean_dsn: str) -> Iterator[psycopg.Connection]:
    """Somebody else's connection."""
    with psycopg.connect(clean_dsn, autocommit=True) as conn:
        yield conn


@pytest.fixture
def real(clean_dsn: str, opened: Opener) -> PostgresStore:
    """A store by the database's own clock."""
    return opened(clean_dsn)


# -- statements and plans


@pytest.mark.parametrize("name", EXPLAINABLE)
def test_each_statement_fits_the_schema(name: str, conn: psycopg.Connection) -> None:
    conn.execute("explain " + STATEMENTS[name], Nulls())


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_each_statement_says_first_what_it_does(name: str) -> None:
    assert STATEMENTS[name].startswith("\n-- ")


def plan(store: PostgresStore, sql: str, **values: object) -> dict:
    """Carry a statement out under `explain` in the settings of a claim, take it back, and return its plan."""
    conn = store._open()
    with conn.transaction(force_rollback=True):
        conn.execute(statements.PLANNER, {"local": True})
        text = f"explain (analyze, buffers, format json) {sql}"
        [[[told]]] = conn.execute(text, Nulls(values), prepare=store._prepare).fetchall()
        return told["Plan"]


def nodes(tree: dict) -> Iterator[dict]:
    yield tree
    for child in tree.get("Plans", []):
        yield from nodes(child)


def buffers(node: dict) -> int:
    return node["Shared Hit Blocks"] + node["Shared Read Blocks"]


def claim_plan(store: PostgresStore, lanes: list[tuple[int, str]], limit: int = 20) -> dict:
    return plan(
        store,
        statements.CLAIM,
        priorities=[priority for priority, _ in lanes],
        queues=[queue for _, queue in lanes],
        dues=[None for _ in lanes],
        ids=[None for _ in lanes],
        kinds=["noop"],
        limit=limit,
        lease_s=30.0,
        node="n",
        worker=1,
        pid=1,
    )


def is_in_order(tree: dict) -> bool:
    """Whether jobs are found by the lane index in its order, and nothing is sorted or read whole."""
    kinds = {node["Node Type"] for node in nodes(tree)}
    by_lane = [node for node in nodes(tree) if node.get("Index Name") == "job_lane"]
    return len(by_lane) == 1 and not kinds & {
        "Sort",
        "Seq Scan",
        "Bitmap Heap Scan",
        "Hash Join",
        "Merge Join",
    }


@pytest.mark.parametrize("prepare", [True, False])
def test_the_plan_of_a_claim_does_not_depend_on_statistics(
    schema_dsn: str, prepare: bool, opened: Opener
) -> None:
    lanes = [(priority, f"q{queue}") for priority in range(10) for queue in range(3)]
    with psycopg.connect(schema_dsn, autocommit=True) as conn:
        conn.execute("alter table tenure.job set (autovacuum_enabled = off)")
        store = opened(schema_dsn, prepare=prepare)
        assert is_in_order(claim_plan(store, lanes)), "on an empty table"
        conn.execute(
            """
            insert into tenure.job (id, kind, queue, priority, due)
            select tenure.new_id(), 'noop', 'q' || n % 3, n % 10, now() + '1 day' from generate_series(1, 200000) n
            """
        )
        conn.execute(
            """
            insert into tenure.finished
            select
                gen_random_uuid(), 'noop', 'q', 5, 'done', now(), 1, 1, 0, 0, 0, null, now(), now(), null, 'n', 1, 1, '{}'
            from generate_series(1, 100000)
            """
        )
        jobs = [new(queue="q0", priority=9) for _ in range(50)]
        store.push(jobs)

        for statistics in ("", "analyze", "vacuum analyze"):
            conn.execute(statistics)
            tree = claim_plan(store, lanes)
            assert is_in_order(tree), statistics
            assert tree["Actual Rows"] == 20
            [picked] = [node for node in nodes(tree) if node.get("Subplan Name") == "CTE picked"]
            assert buffers(picked) < 200, "to look into 30 lanes and lock 20 jobs"
            assert buffers(claim_plan(store, [(9, "q0")])) < 300, "updating them and their indexes included"


def test_a_claim_locks_just_the_rows_that_it_returns(real: PostgresStore, conn: psycopg.Connection) -> None:
    real.push([new(kind=kind, priority=priority) for priority in (1, 2) for kind in ("other", "noop") * 5])
    with real._open().transaction():
        real._rewind(real._open())
        assert real._pick(real._open(), want(limit=7), real._lanes.walk(["*"])).rowcount == 7
        free = conn.execute("select count(*) from (select from tenure.job for update skip locked) as free")
        assert free.fetchone() == (13,)


def test_the_plan_holds_when_the_statistics_say_that_few_jobs_are_due(
    schema_dsn: str, opened: Opener
) -> None:
    with psycopg.connect(schema_dsn, autocommit=True) as conn:
        conn.execute("alter table tenure.job set (autovacuum_enabled = off)")
        store = opened(schema_dsn, prepare=False)
        store.push([new(delay_s=60) for _ in range(1000)])
        conn.execute("analyze tenure.job")
        conn.execute("update tenure.job set due = now() - interval '1 h'")
        store.push([new() for _ in range(5000)])
        assert is_in_order(claim_plan(store, [(5, "default")], limit=100))


def test_a_claim_with_a_position_does_not_walk_what_is_gone(schema_dsn: str, opened: Opener) -> None:
    with psycopg.connect(schema_dsn, autocommit=True) as conn, psycopg.connect(schema_dsn) as snapshot:
        conn.execute("alter table tenure.job set (autovacuum_enabled = off)")
        store = opened(schema_dsn)
        store.push([new() for _ in range(6000)])
        snapshot.execute("set transaction isolation level repeatable read")
        snapshot.execute("select count(*) from tenure.job")  # from now on nothing can be cleaned away
        claims = store.claim(want(limit=100))
        for _ in range(40):
            exchanged = store.exchange([settlement(claim) for claim in claims], want(limit=100, rewind=False))
            claims = list(exchanged.claims)
        [(_, position)] = store._lanes.walk(["*"])
        given = {"priorities": [5], "queues": ["default"], "kinds": ["noop"], "limit": 20, "lease_s": 30.0}
        holder = {"node": "n", "worker": 1, "pid": 1}

        onward = plan(store, statements.CLAIM, dues=[position[0]], ids=[position[1]], **given, **holder)
        head = plan(store, statements.CLAIM, dues=[None], ids=[None], **given, **holder)

        assert onward["Actual Rows"] == head["Actual Rows"] == 20
        assert buffers(onward) < 300
        assert buffers(onward) + 100 < buffers(head)


def test_a_renewal_and_progress_write_no_index(real: PostgresStore, conn: psycopg.Connection) -> None:
    real.push([new() for _ in range(5)])
    leases = [claim.lease for claim in real.claim(want())]
    counter = "select pg_stat_get_xact_tuples_hot_updated('tenure.job'::regclass)"
    with conn.transaction():
        conn.execute(statements.RENEW, {**postgres._lease_arrays(leases), "lease_s": 30.0, "now": None})
        assert conn.execute(counter).fetchone() == (5,)
        told = {**postgres._lease_arrays(leases), "progress": ['{"done": 1}'] * 5, "now": None}
        conn.execute(statements.PROGRESS, told)
        assert conn.execute(counter).fetchone() == (10,)


# -- the rules, repeated by the table


@pytest.mark.parametrize(
    "change",
    [
        "state = 'done'",
        "state = 'running'",
        "node = 'n'",
        "cancel = true",
        "due = 'infinity'",
        "due = '20000-01-01'",
        "due = '1969-12-31'",
        "kind = ''",
        "queue = '@later'",
        "priority = 10",
        "attempt = -1",
        "epoch = -1",
        "unique_key = repeat('u', 65)",
        "history = '{}'",
    ],
)
def test_nobody_can_break_a_rule_by_sql(real: PostgresStore, conn: psycopg.Connection, change: str) -> None:
    real.push([new()])
    with pytest.raises((psycopg.errors.IntegrityError, psycopg.errors.DataError)):
        conn.execute(f"update tenure.job set {change}")


def test_an_odd_payload_harms_no_neighbour_at_claim(real: PostgresStore, conn: psycopg.Connection) -> None:
    odd = ["[" * 3000 + "]" * 3000, "1e400", '"\\ud83d\\ude00 \\\\u0000"', "null", "[]", '{"a": {"a": 1}}']
    for payload in odd:
        conn.execute("select tenure.push('noop', %s::jsonb)", [payload])
    good = [new(payload='{"n": 1}') for _ in range(20)]
    real.push(good)

    claims = real.claim(want(limit=100))

    assert len(claims) == len(odd) + len(good)
    assert {claim.lease.id for claim in claims} >= {job.id for job in good}
    assert all(real.settle([settlement(claim) for claim in claims]))
    for claim in claims:
        assert bytes(real.status(claim.lease.id).payload).decode() == claim.payload


def test_times_come_back_in_utc_at_both_ends_of_the_calendar(clean_dsn: str, opened: Opener) -> None:
    first, last = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 30, 23, 59, tzinfo=UTC)
    with psycopg.connect(clean_dsn, autocommit=True) as conn:
        conn.execute(
            "do $$ begin execute 'alter database ' || current_database() || ' set timezone to ''Asia/Tokyo'''; end $$"
        )
    store = opened(clean_dsn)
    jobs = [new(due=first), new(due=last)]
    store.push(jobs)
    assert [store.status(job.id).due for job in jobs] == [first, last]
    assert all(store.status(job.id).due.utcoffset() == timedelta(0) for job in jobs)


# -- the SQL function for other languages


def test_a_job_can_be_pushed_by_sql(real: PostgresStore, conn: psycopg.Connection) -> None:
    [[id]] = conn.execute("select tenure.push('noop')::text").fetchall()
    [claim] = real.claim(want())
    assert (claim.lease.id, claim.kind, claim.queue, claim.priority, claim.payload) == (
        id,
        "noop",
        "default",
        5,
        "{}",
    )
    assert abs(int(id.replace("-", "")[:12], 16) - datetime.now(UTC).timestamp() * 1000) < 60_000
    assert id[14] == "7"
    assert id[19] in "89ab"

    given = {"id": new_id(), "due": datetime(2040, 1, 1, tzinfo=UTC)}
    push = """
        select tenure.push(
            'other', '{"a": 1}', queue => 'q', priority => 0, due => %(due)s, unique_key => 'u', id => %(id)s::uuid
        )::text
    """
    assert conn.execute(push, given).fetchall() == [(given["id"],)]
    assert conn.execute(push, given).fetchall() == [(given["id"],)], "a known id adds nothing"
    assert conn.execute(push, {**given, "id": new_id()}).fetchall() == [(None,)], "the key is taken"
    view = real.status(given["id"])
    assert (view.kind, view.queue, view.priority, view.due, view.unique) == (
        "other",
        "q",
        0,
        given["due"],
        "u",
    )


# -- a caller's transaction


def test_a_push_lives_and_dies_with_the_callers_transaction(real: PostgresStore, clean_dsn: str) -> None:
    rolled_back, committed = new(), new()
    with psycopg.connect(clean_dsn) as caller:
        PostgresStore.over(caller).push([rolled_back])
        caller.rollback()
        PostgresStore.over(caller).push([committed])
        assert real.claim(want()) == [], "not before the commit"
        caller.commit()
        assert [claim.lease.id for claim in real.claim(want())] == [committed.id]
    assert real.status(rolled_back.id) is None


def test_conflicts_leave_the_callers_transaction_usable(real: PostgresStore, clean_dsn: str) -> None:
    known, holder = new(), new(unique="u")
    real.push([known, holder])
    with psycopg.connect(clean_dsn, row_factory=psycopg.rows.dict_row) as caller:
        caller.execute("create temporary table users (name text)")
        store = PostgresStore.over(caller)
        late = new(unique="u")
        assert store.push([known, late, *(new() for _ in range(1500))])[:2] == [known.id, None]
        caller.execute("insert into users values ('ann')")
        store.close()
        assert caller.execute("select count(*) as n from users").fetchall() == [{"n": 1}], (
            "still the caller's"
        )
    assert real.counts().states["queued"] == 1502


@pytest.mark.parametrize("cursor", [psycopg.Cursor, psycopg.ClientCursor])
@pytest.mark.parametrize("pipelined", [False, True])
def test_new_jobs_live_and_die_with_the_callers_transaction(
    real: PostgresStore, clean_dsn: str, copied: None, cursor: type[psycopg.Cursor], pipelined: bool
) -> None:
    rolled_back, committed = new(), new()
    with psycopg.connect(clean_dsn, cursor_factory=cursor, row_factory=dict_row) as caller:
        with caller.pipeline() if pipelined else nullcontext():
            PostgresStore.over(caller).push_new([rolled_back])
        caller.rollback()
        with caller.pipeline() if pipelined else nullcontext():
            PostgresStore.over(caller).push_new([committed])
        assert real.status(committed.id) is None
    assert (real.status(rolled_back.id), real.status(committed.id) is None) == (None, False)


def test_many_are_all_or_none_on_a_connection_that_commits_by_itself(
    real: PostgresStore, clean_dsn: str, copied: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "TELL", "select 1/0 from (select %(words)s, %(now)s) as t")
    with psycopg.connect(clean_dsn, autocommit=True) as caller, pytest.raises(ValueError, match="zero"):
        PostgresStore.over(caller).push_new([new(), new()])
    assert real.counts().states["queued"] == 0


def test_new_jobs_are_told_once_a_queue(real: PostgresStore, listener: PostgresStore, copied: None) -> None:
    real.push_new([new(queue="a"), new(queue="b"), new(queue="a"), new(queue="c", delay_s=60)])
    assert sorted(heard(listener)) == ["@later", "a", "b"]


def test_an_id_that_is_live_refuses_all_new_jobs(real: PostgresStore, copied: None) -> None:
    known = new()
    real.push([known])
    with pytest.raises(ValueError, match="breaks a rule"):
        real.push_new([new(), known])
    assert real.counts().states["queued"] == 1


def test_a_refused_push_is_the_callers_to_roll_back(clean_dsn: str) -> None:
    with psycopg.connect(clean_dsn) as caller:
        with pytest.raises(ValueError, match="rule"):
            PostgresStore.over(caller).push([new(kind="")])
        caller.rollback()
        assert PostgresStore.over(caller).push([new()]) != [None]
        caller.rollback()


# -- notifications


def heard(store: PostgresStore) -> list[str]:
    """What arrives within a moment, in order."""
    words: list[str] = []
    while select.select([store.fileno()], [], [], 0.2)[0]:
        words += store.notifications()
    return words + store.notifications()


@pytest.fixture
def listener(clean_dsn: str, opened: Opener) -> PostgresStore:
    store = opened(clean_dsn)
    store.listen()
    return store


def push_alone(conn: psycopg.Connection, queue: str, *, fresh: bool = False) -> None:
    """What a push, of an id made just now or of any, does in a transaction by itself, in one that stays open."""
    jobs = [new(queue=queue)]
    statement, given = next(push_new(jobs, copy=False) if fresh else push_all(jobs))
    assert conn.execute(statement, {"now": None, **given, "alone": True}).fetchone()


@pytest.mark.parametrize("fresh", [False, True])
def test_a_push_beside_one_that_notifies_is_silent_and_caught_up_with_when_it_can_be_seen(
    real: PostgresStore, listener: PostgresStore, conn: psycopg.Connection, clean_dsn: str, fresh: bool
) -> None:
    push = real.push_new if fresh else real.push
    with psycopg.connect(clean_dsn) as other:
        with conn.transaction():
            push_alone(conn, "rung", fresh=fresh)
            push_alone(other, "silent", fresh=fresh)
            push([new(queue="silent too")])
            assert not listener.caught_up(), "one that notifies is under way"
        assert heard(listener) == ["rung"]
        assert not listener.caught_up(), "a silent one is under way"
        other.commit()
    assert listener.caught_up()
    with conn.transaction():
        conn.execute("select pg_advisory_xact_lock(1952804469, 2)")
        assert not listener.caught_up(), "one that notifies lets go of its locks one after the other"
    with conn.transaction():
        conn.execute("select pg_advisory_xact_lock(1952804469, 1)")
        push([new(queue="while another asks")])
    push([new(queue="again")])
    push([new(queue="far", delay_s=60.0)])
    assert heard(listener) == ["while another asks", "again", "@later"]


@pytest.mark.parametrize("several", [False, True])
def test_a_push_in_a_longer_transaction_notifies_and_keeps_nobody_from_catching_up(
    listener: PostgresStore, conn: psycopg.Connection, clean_dsn: str, opened: Opener, several: bool
) -> None:
    with psycopg.connect(clean_dsn) as other:
        push_alone(other, "rung")
        with conn.transaction():
            if several:
                opened(clean_dsn).push([new(unique="u"), new()])
            else:
                PostgresStore.over(conn).push_new([new()])
        assert heard(listener) == ["default"]
        other.commit()
    with conn.transaction():
        PostgresStore.over(conn).push([new()])
        assert listener.caught_up()


def test_one_notification_a_queue_and_statement(real: PostgresStore, listener: PostgresStore) -> None:
    real.push([new(queue=queue) for queue in ("a", "b") for _ in range(5)])
    assert sorted(heard(listener)) == ["a", "b"]
    real.push([new(delay_s=60) for _ in range(5)])
    assert heard(listener) == ["@later"]
    real.push([new(), new(delay_s=60)])
    assert sorted(heard(listener)) == ["@later", "default"]
    assert listener.notifications() == []


def test_what_goes_back_to_its_queue_is_told(real: PostgresStore, listener: PostgresStore) -> None:
    real.push([new(queue="a") for _ in range(6)])
    claims = real.claim(want())
    heard(listener)
    real.settle([settlement(claims[0], State.QUEUED)])
    assert heard(listener) == ["a"]
    real.settle([settlement(claims[1], State.QUEUED, delay_s=60)])
    assert heard(listener) == ["@later"]
    real.settle([settlement(claims[2])])
    assert heard(listener) == []
    real.give_back([claims[3].lease])
    assert heard(listener) == ["a"]
    real.cancel(claims[4].lease.id)
    assert heard(listener) == ["@cancel"]
    real.settle([settlement(claims[5], State.DEAD)])
    real.retry(claims[5].lease.id)
    assert heard(listener) == ["a"]
    real.abandon(HOLDER)
    real.claim(want(lease_s=0))
    assert heard(listener) == []
    assert real.reclaim()
    assert heard(listener) == ["a"]


def test_what_is_replaced_rescheduled_or_retried_is_told(
    real: PostgresStore, listener: PostgresStore
) -> None:
    job = new(queue="a", unique="u", delay_s=60)
    real.push([job])
    heard(listener)
    real.push_unique(new(queue="b", unique="u"))
    assert heard(listener) == []
    real.push_unique(new(queue="b", unique="u", delay_s=30), replace=True)
    assert heard(listener) == ["@later"]
    real.push_unique(new(queue="b", unique="u"), replace=True)
    assert heard(listener) == ["b"]
    real.reschedule(job.id, delay_s=60)
    assert heard(listener) == ["@later"]
    real.reschedule(job.id)
    assert heard(listener) == ["b"]
    [claim] = real.claim(want())
    real.settle([settlement(claim, State.DEAD)])
    assert real.retry_all("noop") == 1
    assert heard(listener) == ["b"]


def test_a_rolled_back_push_wakes_nobody(clean_dsn: str, listener: PostgresStore) -> None:
    with psycopg.connect(clean_dsn) as caller:
        PostgresStore.over(caller).push([new()])
        caller.rollback()
    assert heard(listener) == []


def test_words_that_came_with_another_answer_are_not_lost(
    real: PostgresStore, listener: PostgresStore
) -> None:
    real.push([new(queue="a")])
    wait_for(lambda: select.select([listener.fileno()], [], [], 0)[0])
    listener.counts()
    assert listener.notifications() == ["a"]


# -- the connection


def terminate(conn: psycopg.Connection) -> None:
    """End every other session of this database, and see it ended."""
    others = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    conn.execute(f"select pg_terminate_backend(pid) {others}")
    wait_for(lambda: conn.execute(f"select count(*) {others}").fetchone() == (0,))


def test_a_lost_connection_is_said_once_and_made_anew(real: PostgresStore, conn: psycopg.Connection) -> None:
    job = new()
    real.push([job])
    [claim] = real.claim(want())
    terminate(conn)
    with pytest.raises(StoreUnavailable):
        real.exchange([settlement(claim)], want(rewind=False))
    assert real.exchange([settlement(claim)], want(rewind=False)).kept == (True,)


def test_a_listener_hears_again_after_its_connection_was_lost(
    real: PostgresStore, listener: PostgresStore, conn: psycopg.Connection
) -> None:
    terminate(conn)
    assert select.select([listener.fileno()], [], [], 5)[0], "an event loop wakes up"
    with pytest.raises(StoreUnavailable):
        heard(listener)
    with pytest.raises(StoreUnavailable):
        listener.notifications()
    assert listener.caught_up()
    real.push([new(queue="a")])
    assert heard(listener) == ["a"]


def test_a_database_that_cannot_be_reached_is_unavailable(opened: Opener) -> None:
    store = opened("host=/nonexistent dbname=x", connect_timeout_s=1)
    with pytest.raises(StoreUnavailable):
        store.counts()


def test_a_read_only_database_is_unavailable_until_it_is_not(real: PostgresStore) -> None:
    real._open().execute("set default_transaction_read_only = on")
    with pytest.raises(StoreUnavailable):
        real.push([new()])
    assert real.push([new()]) != [None], "a new connection may lead to the new primary"


def test_a_bug_in_a_statement_is_no_outage(real: PostgresStore) -> None:
    with pytest.raises(psycopg.ProgrammingError):
        real._rows("select nonsense")
    assert real.counts()


def test_an_interrupt_in_the_middle_of_a_statement_costs_the_next_call_nothing(real: PostgresStore) -> None:
    def interrupted(conn: psycopg.Connection) -> None:
        conn.pgconn.send_query(b"select pg_sleep(60)")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        real._transact(interrupted)
    assert real.push([job := new()]) == [job.id]


def test_an_interrupt_between_connecting_and_its_settings_leaves_no_connection_without_them(
    real: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(conn: psycopg.Connection, *_: object) -> None:
        raise KeyboardInterrupt

    real.close()
    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Connection, "execute", interrupted)
        with pytest.raises(KeyboardInterrupt):
            real.counts()
    assert real._rows("select current_setting('enable_seqscan'), current_setting('timezone')") == [
        ("off", "UTC")
    ]


def test_a_lost_deadlock_is_tried_again(real: PostgresStore) -> None:
    tries = []

    def work(conn: psycopg.Connection) -> str:
        tries.append(conn)
        if len(tries) < 3:
            raise psycopg.errors.DeadlockDetected
        return "done"

    assert real._transact(work) == "done"
    with pytest.raises(StoreUnavailable):
        real._transact(lambda conn: conn.execute("do $$ begin raise sqlstate '40P01'; end $$"))


def test_two_stores_that_lock_the_same_jobs_do_not_deadlock(real: PostgresStore, clean_dsn: str) -> None:
    code = f"""
from runtime.edges.postgres import PostgresStore
from runtime.edges.pushing import push_all
from runtime.model.jobs import Lease, Progress
store = PostgresStore({clean_dsn!r})
leases = [Lease(id, 1) for id in LEASES]
if REVERSE: leases.reverse()
for _ in range(100):
    store.progress([(lease, Progress(1)) for lease in leases])
    store.renew(leases, 30)
"""
    real.push([new() for _ in range(100)])
    ids = [claim.lease.id for claim in real.claim(want(limit=100))]
    before = deadlocks(real)
    run_all([code.replace("LEASES", repr(ids)).replace("REVERSE", str(reverse)) for reverse in (False, True)])
    assert deadlocks(real) == before


def deadlocks(store: PostgresStore) -> int:
    [[count]] = store._rows("select deadlocks from pg_stat_database where datname = current_database()")
    return count


def run_all(codes: list[str]) -> list[str]:
    """Run programs at the same time; what they print."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for code in codes
    ]
    outputs = [process.communicate(timeout=50) for process in running]
    assert [process.returncode for process in running] == [0] * len(running), outputs
    return [out for out, _ in outputs]


def test_processes_that_claim_together_never_get_the_same_lease_and_lose_nothing(
    real: PostgresStore, clean_dsn: str
) -> None:
    code = f"""
import msgspec
from runtime.edges.postgres import PostgresStore
from runtime.edges.pushing import push_all
from runtime.model.jobs import Ending, Holder, Settlement, State, Want
store = PostgresStore({clean_dsn!r})
got, told, round = [], [], 0
while True:
    round += 1
    want = Want(holder=Holder("n", NUMBER, NUMBER), limit=7, lease_s=30, kinds=("noop",), queues=("*",), rewind=round % 5 == 1)
    exchanged = store.exchange(told, want)
    assert all(exchanged.kept)
    if not exchanged.claims and round % 5 == 1:
        break
    got += [claim.lease for claim in exchanged.claims]
    told = [
        Settlement(lease=claim.lease, ending=Ending.DONE, state=State.DONE)
        if claim.epoch > 1 or number % 3
        else Settlement(lease=claim.lease, ending=Ending.RETRY, state=State.QUEUED)
        for number, claim in enumerate(exchanged.claims)
        for claim in [claim]
    ]
print(msgspec.json.encode(got).decode())
""".replace("claim.epoch", "claim.lease.epoch")
    jobs = [new(queue=f"q{number % 3}", priority=number % 2) for number in range(1500)]
    real.push(jobs)

    outputs = run_all([code.replace("NUMBER", str(number)) for number in (1, 2)])

    got = [lease for output in outputs for lease in msgspec.json.decode(output, type=list[Lease])]
    assert len(got) == len(set(got)), "no lease was given twice"
    assert {lease.id for lease in got} == {job.id for job in jobs}
    assert real.counts().states["done"] == 1500
    assert {view.attempt for view in real.jobs(limit=1500)} == {1, 2}


def test_a_retry_that_waited_for_another_one_finds_nothing(
    real: PostgresStore, opened: Opener, clean_dsn: str, conn: psycopg.Connection
) -> None:
    job = new()
    real.push([job])
    real.settle([settlement(real.claim(want())[0], State.DEAD)])
    waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    with ThreadPoolExecutor(1) as thread:
        with real._open().transaction():
            assert real.retry(job.id)
            assert real.cancel(job.id) is State.CANCELLED, "so that no row of its id is in the way any more"
            second = thread.submit(opened(clean_dsn).retry, job.id)
            wait_for(lambda: conn.execute(waiting).fetchone() == (1,))
        assert second.result(timeout=10) is False
    assert real.counts().states == {"queued": 0, "running": 0, "done": 0, "dead": 0, "cancelled": 1}


# -- large payloads

LARGE_JSON = json.dumps({"large": "x" * LARGE})


def apart(conn: psycopg.Connection) -> dict[str, str]:
    """Payloads that have rows of their own: by the ids of their jobs, the transactions that wrote them."""
    return dict(conn.execute("select id::text, xmin::text from tenure.payload").fetchall())


@pytest.mark.parametrize("way", ["push", "push_new", "push_new by COPY", "push_unique"])
def test_a_large_payload_is_written_once_however_its_job_moves(
    real: PostgresStore, conn: psycopg.Connection, way: str
) -> None:
    small = [new() for _ in range(COPY_ROWS if "COPY" in way else 0)]
    large = [new(payload=LARGE_JSON) for _ in range(2)]
    if way == "push":
        assert real.push(large) == real.push(large) == [job.id for job in large]
    elif way == "push_unique":
        for job in large:
            assert real.push_unique(msgspec.structs.replace(job, unique=job.id)) == job.id
    elif small:
        real.push_new(small + large)
    else:
        for job in large:
            real.push_new([job])
    written = apart(conn)
    assert written.keys() == {job.id for job in large}
    [[own]] = conn.execute("select count(*) from tenure.job where payload is not null")
    assert own == len(small)

    claims = [claim for claim in real.claim(want(limit=len(small) + 2)) if claim.lease.id in written]
    assert [json.loads(claim.payload) for claim in claims] == [json.loads(LARGE_JSON)] * 2
    done, dead = claims
    assert all(real.settle([settlement(done), settlement(dead, State.DEAD)]))
    for job in large:
        assert json.loads(bytes(real.status(job.id).payload)) == json.loads(LARGE_JSON)
    assert real.retry(dead.lease.id)
    assert apart(conn) == written
    for job in large:
        assert real.delete(job.id)
    assert apart(conn) == {}


def test_a_small_payload_takes_the_place_of_a_large_one(
    real: PostgresStore, conn: psycopg.Connection
) -> None:
    job = new(payload=LARGE_JSON, unique="u")
    real.push_unique(job)
    real.push_unique(new(payload='{"n": 2}', unique="u"), replace=True)
    assert (bytes(real.status(job.id).payload), apart(conn)) == (b'{"n": 2}', {})


def test_a_payload_that_was_left_behind_is_in_nobodys_way(
    real: PostgresStore, conn: psycopg.Connection
) -> None:
    job = new(payload=LARGE_JSON)
    real.push([job])
    conn.execute("delete from tenure.job")
    again = msgspec.structs.replace(job, payload=json.dumps({"large": "y" * LARGE}))
    assert real.push([again]) == [job.id]
    assert json.loads(real.claim(want())[0].payload) == json.loads(again.payload)


def test_a_job_whose_payload_is_nowhere_harms_no_neighbour(
    real: PostgresStore, conn: psycopg.Connection
) -> None:
    jobs = [new(), new(payload=LARGE_JSON)]
    real.push(jobs)
    conn.execute("delete from tenure.payload")
    assert sorted(claim.payload for claim in real.claim(want())) == ["null", "{}"]


def test_a_statement_pushes_no_more_text_than_it_should_hold(
    real: PostgresStore, conn: psycopg.Connection
) -> None:
    quarter = json.dumps({"large": "x" * (PUSH_CHARACTERS // 4)})
    jobs = [new(payload=quarter) for _ in range(7)]
    rows = [(job.id, job.payload) for job in jobs]
    assert [len(part) for part in _parts(rows)] == [3, 3, 1]
    assert [len(part) for part in _parts([("id", "{}")] * (PUSH_ROWS + 1))] == [PUSH_ROWS, 1]
    assert real.push(jobs) == [job.id for job in jobs]
    assert len(apart(conn)) == 7


# -- upkeep


def partitions(conn: psycopg.Connection) -> list[str]:
    found = conn.execute(
        """
        select relname from pg_inherits join pg_class on oid = inhrelid
        where inhparent = 'tenure.finished'::regclass order by 1
        """
    )
    return [name.removeprefix("finished_") for (name,) in found]


@pytest.fixture
def aging(
    schema_dsn: str, clock: Clock, opened: Opener
) -> Iterator[tuple[PostgresStore, psycopg.Connection]]:
    """A store at noon of 1 March 2040, and a connection to its database."""
    clock.now = datetime(2040, 3, 1, 12, tzinfo=UTC)
    with psycopg.connect(schema_dsn, autocommit=True) as conn:
        yield opened(schema_dsn, clock=clock), conn


def test_pruning_makes_partitions_ahead_and_drops_them_behind(
    aging: tuple[PostgresStore, psycopg.Connection], clock: Clock
) -> None:
    store, conn = aging
    store.prune(86_400, 60)
    assert partitions(conn) == ["20400301", "20400302", "20400303", "rest"]
    store.push([new(payload=LARGE_JSON)])
    store.settle([settlement(store.claim(want())[0])])
    store.push([left := new(payload=LARGE_JSON)])
    assert conn.execute("select count(*) from tenure.finished_20400301").fetchone() == (1,)
    clock.move(86_400 * 1.4)
    store.prune(86_400, 60)
    assert partitions(conn) == ["20400301", "20400302", "20400303", "20400304", "rest"]
    clock.move(86_400 * 1.2)
    store.prune(86_400, 60)
    assert partitions(conn) == ["20400303", "20400304", "20400305", "20400306", "rest"]
    assert apart(conn).keys() == {left.id}


def test_a_prune_deletes_large_payloads_in_small_steps_and_their_day_last(
    aging: tuple[PostgresStore, psycopg.Connection], clock: Clock
) -> None:
    store, conn = aging
    store.prune(86_400, 60)
    store.push([new(payload=LARGE_JSON) for _ in range(LARGE_ROWS + 1)])
    store.settle([settlement(claim) for claim in store.claim(want(limit=LARGE_ROWS + 1))])
    clock.move(3 * 86_400)
    assert store.prune(86_400, 60)
    assert (len(apart(conn)), partitions(conn)[0]) == (1, "20400301")
    assert not store.prune(86_400, 60)
    assert (len(apart(conn)), partitions(conn)[0]) == (0, "20400303")


def test_what_has_no_partition_is_kept_in_the_default_one_and_pruned_there(
    aging: tuple[PostgresStore, psycopg.Connection], clock: Clock
) -> None:
    store, conn = aging
    store.push([new(), new(payload=LARGE_JSON), new()])
    store.settle([settlement(claim) for claim in store.claim(want())])
    store.push([left := new(payload=LARGE_JSON)])
    store.prune(86_400, 60)
    assert "20400301" not in partitions(conn), "rows of that day are in the default partition already"
    assert conn.execute("select count(*) from tenure.finished_rest").fetchone() == (3,)
    clock.move(3 * 86_400)
    store.prune(86_400, 60)
    assert conn.execute("select count(*) from tenure.finished_rest").fetchone() == (0,)
    assert apart(conn).keys() == {left.id}


def test_pruning_leaves_what_it_cannot_lock_for_the_next_time(
    aging: tuple[PostgresStore, psycopg.Connection], clock: Clock
) -> None:
    store, conn = aging
    store.prune(86_400, 60)
    clock.move(10 * 86_400)
    with conn.transaction():
        conn.execute("select from tenure.finished")
        store.prune(86_400, 60)
        assert partitions(conn) == ["20400301", "20400302", "20400303", "rest"]
    store.prune(86_400, 60)
    assert partitions(conn) == ["20400311", "20400312", "20400313", "rest"]


def test_ids_rise_and_have_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)  # so that it is the counter that rises
    ids = [*(new_id() for _ in range(10_000)), *new_ids(10_000), new_id()]
    assert ids == sorted(set(ids))
    assert {(uuid.UUID(id).version, uuid.UUID(id).variant) for id in ids} == {(7, uuid.RFC_4122)}
    assert new_ids(0) == []
    assert canonical("{" + ids[0].upper() + "}") == ids[0]
    assert canonical("nonsense") is None
    assert canonical(ids[0] + "\n") is None


def test_a_cancel_that_meets_a_claim_is_asked_of_the_running_job(schema_dsn: str) -> None:
    store, other = PostgresStore(schema_dsn), PostgresStore(schema_dsn)
    job = new()
    store.push([job])
    with psycopg.connect(schema_dsn) as claiming, psycopg.connect(schema_dsn, autocommit=True) as watching:
        claiming.execute(
            "update tenure.job set state = 'running', attempt = 1, epoch = 1, lease_until = now() + interval '1 minute',"
            " started = now(), node = 'n', worker = 1, pid = 1 where id = %s",
            (job.id,),
        )
        answers: list[object] = []
        thread = threading.Thread(target=lambda: answers.append(other.cancel(job.id)))
        thread.start()
        waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        wait_for(lambda: watching.execute(waiting).fetchone(), lambda row: row == (1,))
        claiming.commit()
        thread.join()
    assert answers == [State.RUNNING]
    assert store.cancels("n") == [Lease(job.id, 1)]
    store.close()
    other.close()


# -- kicks


def runs(store: PostgresStore) -> list[str]:
    return sorted(run.kind for run in store.jobs(State.QUEUED))


def test_a_kick_lives_and_dies_with_the_callers_transaction(real: PostgresStore, clean_dsn: str) -> None:
    with psycopg.connect(clean_dsn) as caller:
        PostgresStore.over(caller).kick([Kick(kind="noop")])
        assert real.start_kicked() == 0, "not before the commit"
        caller.rollback()
        assert real.start_kicked() == 0
        PostgresStore.over(caller).kick([Kick(kind="noop")])
        caller.commit()
        assert real.start_kicked() == 1


def test_open_transactions_that_kick_hold_up_nobody(real: PostgresStore, clean_dsn: str) -> None:
    """They kick the same kinds, each in another order; and what is committed is run while they are open."""
    with ExitStack() as stack:
        callers = [stack.enter_context(psycopg.connect(clean_dsn)) for _ in range(10)]
        for at, caller in enumerate(callers):
            caller.execute("set lock_timeout = '1s'")
            for kind in ("a", "b") if at % 2 else ("b", "a"):
                PostgresStore.over(caller).kick([Kick(kind=kind)])
        real.kick([Kick(kind="a")])
        assert (real.start_kicked(), runs(real)) == (1, ["a"])
        [claim] = real.claim(want(kinds=("a",)))
        for caller in callers:
            caller.commit()
        real.start_kicked()
        assert runs(real) == ["b"]
        real.settle([settlement(claim)])
        real.start_kicked()
        assert runs(real) == ["a", "b"]


def test_of_ten_thousand_kicks_during_a_run_one_run_is_made(
    real: PostgresStore, opened: Opener, clean_dsn: str
) -> None:
    real.kick([Kick(kind="noop")])
    real.start_kicked()
    [first] = real.claim(want())

    def kick(number: int) -> None:
        with closing(PostgresStore(clean_dsn)) as store:
            for _ in range(500):
                store.kick([Kick(kind="noop")] * 5)
                if number == 0:
                    store.start_kicked()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(kick, range(4)))
    assert real.start_kicked() <= 10_000
    assert real.jobs(State.QUEUED) == []
    real.settle([settlement(first)])
    real.start_kicked()
    assert runs(real) == ["noop"]
    real.settle([settlement(claim) for claim in real.claim(want())])
    assert real.start_kicked() == 0


def test_each_kick_is_followed_by_a_run_that_sees_what_was_committed_with_it(
    clean_dsn: str, conn: psycopg.Connection
) -> None:
    """Threads kick, each a kind of its own and often while a run of it is on; others make the runs and run them."""
    conn.execute("create table work (kind text not null, seen boolean not null default false)")
    kinds = ("a", "b", "c", "d")
    ran: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    over = threading.Event()

    def kick(kind: str) -> None:
        chance = random.Random(kind)
        with psycopg.connect(clean_dsn) as caller:
            for _ in range(20):
                PostgresStore.over(caller).kick([Kick(kind=kind)] * 2)
                caller.execute("insert into work values (%s)", (kind,))
                over.wait(chance.random() * 0.01)
                caller.commit()
                left = caller.execute("select from work where kind = %s and not seen", (kind,))
                while left.rowcount:
                    caller.commit()
                    assert not over.wait(0.001)
                    left = caller.execute("select from work where kind = %s and not seen", (kind,))
                caller.commit()

    def make() -> None:
        with closing(PostgresStore(clean_dsn)) as store:
            while not over.is_set():
                store.start_kicked()

    def work() -> None:
        with (
            closing(PostgresStore(clean_dsn)) as store,
            psycopg.connect(clean_dsn, autocommit=True) as handler,
        ):
            while not over.is_set():
                for claim in store.claim(want(kinds=kinds, limit=1)):
                    began = time.monotonic()
                    handler.execute("update work set seen = true where kind = %s and not seen", (claim.kind,))
                    over.wait(0.005)
                    ran[claim.kind].append((began, time.monotonic()))
                    store.settle([settlement(claim)])

    with ThreadPoolExecutor(len(kinds) + 4) as threads:
        others = [threads.submit(act) for act in (make, work, make, work)]
        kicking = [threads.submit(kick, kind) for kind in kinds]
        try:
            for one in kicking:
                one.result(timeout=20)
        finally:
            over.set()
        for other in others:
            other.result()
    for runs in ran.values():
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(sorted(runs))), "two at once"


def test_a_kind_can_be_kicked_by_sql(real: PostgresStore, conn: psycopg.Connection) -> None:
    real.schedule(
        NewSchedule(
            name="tidy", kind="tidy", spec="{}", payload='{"n": 2}', queue="q", priority=1, declared=True
        )
    )
    conn.execute("select tenure.kick('tidy'), tenure.kick('other')")
    assert real.start_kicked() == 2
    other, tidy = sorted(real.jobs(), key=lambda run: run.kind)
    assert (other.queue, other.priority) == ("default", 5)
    assert (tidy.queue, tidy.priority) == ("q", 1), "as its schedule says"
    view = real.status(tidy.id)
    assert view is not None
    assert msgspec.json.decode(view.payload or b"") == {"n": 2}


def test_a_kick_is_told_and_so_is_each_end_that_one_may_wait_for(
    real: PostgresStore, listener: PostgresStore
) -> None:
    real.kick([Kick(kind="noop", queue="q")])
    assert heard(listener) == ["@kick"]
    real.start_kicked()
    assert heard(listener) == ["q"]

    def again() -> Claim:
        [claim] = real.claim(want())
        heard(listener)
        return claim

    real.give_back([again().lease])
    assert sorted(heard(listener)) == ["@kick", "q"]
    real.settle([settlement(again(), State.QUEUED, delay_s=60)])
    assert sorted(heard(listener)) == ["@kick", "@later"]
    real.kick([Kick(kind="noop")])
    real.start_kicked()
    assert sorted(heard(listener)) == ["@kick", "q"], "brought forward"
    real.settle([settlement(again())])
    assert heard(listener) == ["@kick"]


def test_making_runs_reads_no_more_than_the_kicks_and_their_runs(schema_dsn: str, opened: Opener) -> None:
    store = opened(schema_dsn)
    store.push([new(unique=f"u{number}") for number in range(3000)])
    store.push([new(kind="waits", unique="schedule:waits", delay_s=60)])
    store.kick([Kick(kind=kind) for kind in ("a", "b", "waits")])
    for statistics in ("", "analyze tenure.job, tenure.kick"):
        store._open().execute(statistics)
        tree = plan(store, statements.START_KICKED, limit=100)
        made = [node for node in nodes(tree) if node.get("Subplan Name") in ("CTE moved", "CTE made")]
        assert [node["Actual Rows"] for node in made] == [1, 2]
        assert buffers(tree) < 120, "3,000 jobs have more than that"


def test_no_more_words_are_kept_than_attempts(real: PostgresStore, conn: psycopg.Connection) -> None:
    job = new()
    real.push([job])
    for _ in range(HISTORY_LIMIT + 3):
        [claim] = real.claim(want())
        real.settle([settlement(claim, State.QUEUED, error=Failure("E", "words"))])
    epochs = conn.execute("select jsonb_object_keys(texts) from tenure.job").fetchall()
    assert sorted(int(epoch) for (epoch,) in epochs) == [1, *range(5, HISTORY_LIMIT + 4)]
