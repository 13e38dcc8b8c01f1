"""The application's side for programs with an event loop: the verbs of `Queue`, to be awaited.

Calls on connections of its own run in the threads of `asyncio.to_thread`; a push on the caller's asynchronous
connection runs in the loop itself, in that connection's transaction.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import psycopg

from runtime.config import Config
from runtime.definition import Job
from runtime.edges.postgres import push_over
from runtime.edges.pushing import can_copy, kick_all, push_all, push_new, push_unique
from runtime.model.jobs import JobView
from runtime.queue import (
    LOOK_AFTER_S,
    LOOK_AFTER_S_MAX,
    LOOK_FACTOR,
    Queue,
    check_taken,
    ended,
    new_job,
    new_jobs,
    result_of,
)
from runtime.registry import DEFINED

P = ParamSpec("P")
T = TypeVar("T")


def _awaited(
    method: Callable[Concatenate[Queue, P], T],
) -> Callable[Concatenate[AsyncQueue, P], Coroutine[Any, Any, T]]:
    """A verb of `Queue`, carried out in a thread."""

    async def call(self: AsyncQueue, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(method, self._queue, *args, **kwargs)

    functools.update_wrapper(call, method)
    return call


class AsyncQueue:
    """Jobs of one database, for the tasks of an event loop; arguments and errors as of `Queue`.

    A call whose task is cancelled is carried out to its end all the same, and its answer is lost: whether a
    push was made is then unknown, and pushing again with the same `id` adds nothing. On a connection of the
    caller's it is the other way round: the statement is cancelled, and the transaction is to be rolled back.
    """

    def __init__(self, url: str | None = None, *, config: Config | None = None) -> None:
        self._queue = Queue(url, config=config)

    async def push(
        self,
        job: Job,
        *,
        after: float | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        unique: str | None = None,
        or_existing: bool = False,
        replace: bool = False,
        within: float | None = None,
        id: str | None = None,
        conn: psycopg.AsyncConnection[Any] | None = None,
    ) -> str | None:
        """As `Queue.push`; `conn` is an asynchronous connection of psycopg 3."""
        if conn is None:
            return await asyncio.to_thread(
                self._queue.push,
                job,
                after=after,
                at=at,
                priority=priority,
                queue=queue,
                unique=unique,
                or_existing=or_existing,
                replace=replace,
                within=within,
                id=id,
            )
        _check_asynchronous(conn)
        check_taken(unique, or_existing=or_existing, replace=replace, within=within)
        if within is not None:
            raise ValueError("within cannot be given with conn: what it remembers would outlive a rollback")
        new = new_job(
            DEFINED.definition_of(job),
            job,
            after=after,
            at=at,
            priority=priority,
            queue=queue,
            unique=unique,
            id=id,
        )
        if or_existing or replace:
            return await push_over(conn, push_unique(new, replace=replace))
        if id is not None or unique is not None:
            return (await push_over(conn, push_all([new])))[0]
        await push_over(conn, push_new([new], copy=False))
        return new.id

    async def push_many(
        self, jobs: Iterable[Job], *, conn: psycopg.AsyncConnection[Any] | None = None
    ) -> list[str]:
        """As `Queue.push_many`; `conn` is an asynchronous connection of psycopg 3."""
        if conn is None:
            return await asyncio.to_thread(self._queue.push_many, jobs)
        _check_asynchronous(conn)
        new = new_jobs(jobs)
        if new:
            await push_over(conn, push_new(new, copy=can_copy(conn)))
        return [each.id for each in new]

    async def kick(self, kind: str, *, conn: psycopg.AsyncConnection[Any] | None = None) -> None:
        """As `Queue.kick`; `conn` is an asynchronous connection of psycopg 3."""
        if conn is None:
            return await asyncio.to_thread(self._queue.kick, kind)
        _check_asynchronous(conn)
        return await push_over(conn, kick_all([DEFINED.kick_of(kind)]))

    cancel = _awaited(Queue.cancel)
    retry = _awaited(Queue.retry)
    retry_all = _awaited(Queue.retry_all)
    reschedule = _awaited(Queue.reschedule)
    delete = _awaited(Queue.delete)
    status = _awaited(Queue.status)
    schedule = _awaited(Queue.schedule)
    unschedule = _awaited(Queue.unschedule)
    pause = _awaited(Queue.pause)
    resume = _awaited(Queue.resume)
    schedules = _awaited(Queue.schedules)
    run_now = _awaited(Queue.run_now)
    counts = _awaited(Queue.counts)
    stats = _awaited(Queue.stats)
    ready = _awaited(Queue.ready)

    async def wait(self, id: str, timeout: float) -> JobView:  # noqa: ASYNC109 - as Queue.wait
        """As `Queue.wait`; neither a thread nor a connection is held between two looks."""
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + timeout
        pause_s = LOOK_AFTER_S
        while True:
            left_s = deadline_s - clock()
            job = ended(id, await self.status(id, payload=False), timeout, left_s)
            if job is not None:
                return job
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * LOOK_FACTOR, LOOK_AFTER_S_MAX)

    async def result(self, id: str, timeout: float) -> Any:  # noqa: ASYNC109 - as Queue.result
        """As `Queue.result`."""
        return result_of(await self.wait(id, timeout))

    async def close(self) -> None:
        """Close the connections once the calls under way are over, also when the task is cancelled meanwhile."""
        await asyncio.shield(asyncio.to_thread(self._queue.close))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, cls: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _check_asynchronous(conn: object) -> None:
    if not isinstance(conn, psycopg.AsyncConnection):
        raise TypeError(
            f"conn must be an AsyncConnection of psycopg 3, got {type(conn).__qualname__}; Queue takes others"
        )
