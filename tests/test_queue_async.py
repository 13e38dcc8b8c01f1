"""The application's side beside an event loop: what `AsyncQueue` promises, on a real database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from runtime import NO_RETRY, AsyncQueue, Context, Job, Queue, job
from runtime.edges import statements
from runtime.edges.ids import new_id
from runtime.edges.postgres import PostgresStore
from runtime.edges.pushing import COPY_ROWS
from runtime.errors import JobFailed, StoreUnavailable
from runtime.model.jobs import Ending, Holder, Settlement, State, Want
from tests.helpers.waiting import wait_for


@job("async.scale", retry=NO_RETRY)
class Scale(Job):
    path: str

    def run(self, ctx: Context) -> set[int]:
        raise NotImplementedError


@pytest.fixture
def store(schema_dsn: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(schema_dsn)) as opened:
        yield opened


def run(dsn: str, use: Callable[[AsyncQueue], Coroutine[Any, Any, None]]) -> None:
    """Use a queue in a loop of its own, and close it."""

    async def main() -> None:
        async with AsyncQueue(dsn) as queue:
            await use(queue)

    asyncio.run(main())


def end(store: PostgresStore, ending: Ending, state: State, **given: Any) -> None:
    """Run and settle the one job that is queued, as a worker would."""
    want = Want(holder=Holder("n", 1, 1), limit=1, lease_s=60.0, kinds=("async.scale",), queues=("*",))
    [claim] = store.claim(want)
    assert store.settle([Settlement(lease=claim.lease, ending=ending, state=state, **given)]) == [True]


def verbs(cls: type) -> set[str]:
    return {name for name, value in vars(cls).items() if callable(value) and not name.startswith("_")}


def test_it_has_the_verbs_of_queue_and_all_are_awaited() -> None:
    assert verbs(AsyncQueue) == verbs(Queue)
    assert all(asyncio.iscoroutinefunction(getattr(AsyncQueue, name)) for name in verbs(AsyncQueue))
    assert AsyncQueue.retry_all.__doc__ == Queue.retry_all.__doc__


def test_what_is_pushed_is_seen_and_changed(schema_dsn: str) -> None:
    async def use(queue: AsyncQueue) -> None:
        id = await queue.push(Scale(path="a"), unique="one", after=60) or ""
        assert await queue.push(Scale(path="b"), unique="one") is None
        assert await queue.push(Scale(path="b"), unique="one", or_existing=True) == id
        assert await queue.push(Scale(path="b"), unique="two", within=30) is not None
        assert await queue.push(Scale(path="b"), unique="two", within=30) is None
        assert await queue.reschedule(id, after=0)
        view = await queue.status(id)
        assert view is not None
        assert view.due <= (await queue.stats()).now
        assert await queue.cancel(id)
        assert len(await queue.push_many(Scale(path=str(at)) for at in range(5))) == 5
        assert (await queue.counts()).states["queued"] == 6

    run(schema_dsn, use)


@pytest.mark.parametrize("commits", [True, False])
def test_a_job_commits_with_the_callers_rows_or_not(schema_dsn: str, commits: bool) -> None:
    async def use(queue: AsyncQueue) -> None:
        async with await psycopg.AsyncConnection.connect(schema_dsn) as conn:
            id = await queue.push(Scale(path="a"), unique="one", conn=conn) or ""
            assert await queue.push(Scale(path="a"), unique="one", conn=conn) is None
            assert await queue.push(Scale(path="b"), unique="one", replace=True, conn=conn) == id
            many = await queue.push_many([Scale(path="c") for _ in range(COPY_ROWS)], conn=conn)
            async with conn.pipeline():
                many += await queue.push_many([Scale(path="d") for _ in range(COPY_ROWS)], conn=conn)
            assert await queue.push_many([], conn=conn) == []
            assert await queue.status(id) is None, "it is not there for others before the commit"
            if not commits:
                await conn.rollback()
        assert (await queue.status(many[-1]) is not None) is commits
        assert (await queue.counts()).states["queued"] == (1 + 2 * COPY_ROWS) * commits

    run(schema_dsn, use)


def test_on_a_connection_that_commits_by_itself_many_are_all_or_none(
    schema_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "TELL", "select 1/0 from (select %(words)s, %(now)s) as t")

    async def use(queue: AsyncQueue) -> None:
        async with await psycopg.AsyncConnection.connect(schema_dsn, autocommit=True) as conn:
            with pytest.raises(ValueError, match="zero"):
                await queue.push_many([Scale(path="c") for _ in range(COPY_ROWS)], conn=conn)
            assert (await queue.counts()).states["queued"] == 0
            monkeypatch.undo()
            await queue.push_many([Scale(path="c") for _ in range(COPY_ROWS)], conn=conn)
            assert (await queue.counts()).states["queued"] == COPY_ROWS

    run(schema_dsn, use)


def test_a_push_on_the_callers_connection_blocks_neither_loop_nor_thread(schema_dsn: str) -> None:
    """The push waits for a lock of another transaction, which this very loop then releases."""

    async def use(queue: AsyncQueue) -> None:
        connect = psycopg.AsyncConnection.connect
        async with await connect(schema_dsn) as first, await connect(schema_dsn) as second:
            id = await queue.push(Scale(path="a"), unique="one", conn=first)
            threads = threading.active_count()
            waiting = asyncio.create_task(
                queue.push(Scale(path="a"), unique="one", or_existing=True, conn=second)
            )
            await asyncio.to_thread(wait_for, lambda: is_blocked(schema_dsn))
            assert threading.active_count() <= threads + 1, "the one that watches"
            await first.commit()
            assert await waiting == id

    run(schema_dsn, use)


def is_blocked(dsn: str) -> bool:
    with psycopg.connect(dsn) as conn:
        return bool(conn.execute("select from pg_locks where not granted").fetchall())


def test_a_cancelled_push_on_the_callers_connection_leaves_it_to_be_rolled_back(schema_dsn: str) -> None:
    async def use(queue: AsyncQueue) -> None:
        connect = psycopg.AsyncConnection.connect
        async with await connect(schema_dsn) as first, await connect(schema_dsn) as second:
            await queue.push(Scale(path="a"), unique="one", conn=first)
            waiting = asyncio.create_task(queue.push(Scale(path="a"), unique="one", conn=second))
            await asyncio.to_thread(wait_for, lambda: is_blocked(schema_dsn))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await second.rollback()
            assert await queue.push(Scale(path="b"), conn=second) is not None

    run(schema_dsn, use)


def test_a_cancelled_call_leaves_the_queue_usable_and_its_push_is_made(
    schema_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, may_go_on = threading.Event(), threading.Event()
    push = PostgresStore.push

    def held(store: PostgresStore, jobs: Any) -> Any:
        entered.set()
        assert may_go_on.wait(20)
        return push(store, jobs)

    async def use(queue: AsyncQueue) -> None:
        monkeypatch.setattr(PostgresStore, "push", held)
        id = new_id()
        pushing = asyncio.create_task(queue.push(Scale(path="a"), id=id))
        await asyncio.to_thread(entered.wait, 20)
        pushing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pushing
        may_go_on.set()
        assert await queue.push(Scale(path="a"), id=id) == id
        await queue.close()
        with Queue(schema_dsn) as other:
            assert other.counts().states["queued"] == 1

    run(schema_dsn, use)


def test_another_kind_of_connection_and_a_window_are_refused(schema_dsn: str) -> None:
    async def use(queue: AsyncQueue) -> None:
        with psycopg.connect(schema_dsn) as conn:
            with pytest.raises(TypeError, match="AsyncConnection of psycopg 3, got Connection"):
                await queue.push(Scale(path="a"), conn=conn)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="AsyncConnection"):
                await queue.push_many([Scale(path="a")], conn=conn)  # type: ignore[arg-type]
        async with await psycopg.AsyncConnection.connect(schema_dsn) as asynchronous:
            with pytest.raises(ValueError, match="within cannot"):
                await queue.push(Scale(path="a"), unique="one", within=3, conn=asynchronous)
            with pytest.raises(ValueError, match="replace needs unique"):
                await queue.push(Scale(path="a"), replace=True, conn=asynchronous)
            with Queue(schema_dsn) as plain, pytest.raises(TypeError, match="got AsyncConnection"):
                plain.push(Scale(path="a"), conn=asynchronous)

    run(schema_dsn, use)


def test_a_connection_that_is_gone_is_said_so(schema_dsn: str) -> None:
    async def use(queue: AsyncQueue) -> None:
        conn = await psycopg.AsyncConnection.connect(schema_dsn)
        await conn.close()
        with pytest.raises(StoreUnavailable):
            await queue.push(Scale(path="a"), conn=conn)
        with pytest.raises(StoreUnavailable):
            await queue.push_many([Scale(path="a")], conn=conn)

    run(schema_dsn, use)


def test_a_result_is_waited_for(schema_dsn: str, store: PostgresStore) -> None:
    async def use(queue: AsyncQueue) -> None:
        id = await queue.push(Scale(path="a")) or ""
        with pytest.raises(TimeoutError, match="still queued"):
            await queue.wait(id, 0.05)
        with pytest.raises(LookupError):
            await queue.wait(new_id(), 5)
        waiting = asyncio.create_task(queue.result(id, 20))
        await asyncio.to_thread(end, store, Ending.DONE, State.DONE, result="[3, 1, 3]")
        assert await waiting == {1, 3}
        dead = await queue.push(Scale(path="a")) or ""
        await asyncio.to_thread(end, store, Ending.DEAD, State.DEAD)
        with pytest.raises(JobFailed):
            await queue.result(dead, 20)

    run(schema_dsn, use)


def test_a_closed_one_says_so(schema_dsn: str) -> None:
    async def use(queue: AsyncQueue) -> None:
        await queue.counts()
        await queue.close()
        with pytest.raises(RuntimeError, match="is closed"):
            await queue.counts()

    run(schema_dsn, use)


@job("async.tidy", retry=NO_RETRY)
class Tidy(Job):
    def run(self, ctx: Context) -> None: ...


def test_a_kick_is_made_by_itself_or_in_the_callers_transaction(
    schema_dsn: str, store: PostgresStore
) -> None:
    async def use(queue: AsyncQueue) -> None:
        async with await psycopg.AsyncConnection.connect(schema_dsn) as conn:
            await queue.kick("async.tidy", conn=conn)
            await conn.rollback()
            assert store.start_kicked() == 0
            await queue.kick("async.tidy", conn=conn)
            await conn.commit()
        await queue.kick("async.tidy")
        assert store.start_kicked() == 2

    run(schema_dsn, use)
    assert [each.kind for each in store.jobs()] == ["async.tidy"]
