"""Owns which statements a push or a kick is made of, whoever carries them out.

A push is a generator: it yields a statement with its values, is sent the rows, and returns its answer. So a store's
connection, a caller's, and a caller's asynchronous one push by the same rules. Values in a list of rows are
for a COPY, and the answer to that is empty.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import psycopg
from psycopg.pq import PipelineStatus
from psycopg.rows import TupleRow

from runtime.edges import statements, values
from runtime.edges.ids import canonical
from runtime.edges.statements import array
from runtime.errors import StoreUnavailable
from runtime.model.jobs import Kick, NewJob

T = TypeVar("T")

Row = tuple[Any, ...]
Push = Generator[tuple[str, dict[str, Any] | Iterator[Row]], list[TupleRow], T]

PUSH_ROWS = 1000  # jobs a statement
COPY_ROWS = 200  # jobs from which on COPY, with its four round trips more, is the faster
PUSH_CHARACTERS = 4_194_304  # of payloads a statement, unless one is longer
LARGE = 16_384  # characters: so long a payload has a row of its own, which stays when its job moves
ROUNDS = 10  # of a push whose unique key is taken, and then no longer when its holder is asked for
NEW_COLUMNS = ("ids", "kinds", "queues", "priorities", "dues", "delays", "uniques", "payloads")


def push_all(jobs: Sequence[NewJob]) -> Push[list[str | None]]:
    """As `Store.push` says."""
    ids = [canonical(job.id) for job in jobs]
    first = dict(zip(reversed(ids), reversed(jobs), strict=True))  # an id given twice: as the first time
    rows = [_row(id, first[id]) for id in dict.fromkeys(ids)]
    unique = {id for id, job in first.items() if job.unique is not None}
    there = yield from _in_parts(rows)
    doubtful = unique - there  # known, or their keys are taken
    if doubtful:
        known = yield statements.KNOWN, {"ids": array(doubtful)}
        there |= {id for [id] in known}
    return [id if id in there or id not in unique else None for id in ids]


def push_new(jobs: Sequence[NewJob], *, copy: bool) -> Push[None]:
    """As `Store.push_new` says; `copy` allows COPY."""
    assert all(job.unique is None for job in jobs), "a key may be taken"
    if copy and len(jobs) >= COPY_ROWS:
        [[now]] = yield statements.NOW, {}
        words: set[str] = set()
        yield statements.COPY, _copied(jobs, now, words)
        large = [(job.id, job.payload) for job in jobs if _is_large(job)]
        if large:
            yield statements.COPY_LARGE, iter(large)
        yield statements.TELL, {"words": array(sorted(words))}
    elif len(jobs) == 1 and not _is_large(*jobs):
        yield statements.PUSH_NEW, _one(*jobs)
    else:
        yield from _in_parts([_row(job.id, job) for job in jobs])


def _in_parts(rows: Sequence[Row]) -> Push[set[str]]:
    """Push rows, so many a statement; the ids that were added."""
    added: set[str] = set()
    for part in _parts(rows):
        added |= {id for id, _ in (yield statements.PUSH, _columns(part))}
    return added


def _parts(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Rows for a statement each: as many as a statement should have, and no more text than it should hold."""
    part: list[Row] = []
    characters = 0
    for row in rows:
        characters += len(row[-1])
        if part and (len(part) == PUSH_ROWS or characters > PUSH_CHARACTERS):
            yield part
            part, characters = [], len(row[-1])
        part.append(row)
    if part:
        yield part


def _is_large(job: NewJob) -> bool:
    return len(job.payload) >= LARGE


def can_copy(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether a connection is in no pipeline, in which PostgreSQL allows no COPY."""
    return conn.pgconn.pipeline_status == PipelineStatus.OFF


def push_unique(job: NewJob, *, replace: bool) -> Push[str | None]:
    """As `Store.push_unique` says.

    Raises:
        StoreUnavailable: others took the key and ended, again and again, between two statements.
    """
    id = canonical(job.id)
    holder = _one(job) | {"unique": job.unique}
    for _ in range(ROUNDS):
        added = yield statements.PUSH, _columns([_row(id, job)])
        known = added or (yield statements.KNOWN, {"ids": array([id])})
        if known:
            return id
        for held_by, answers, *_ in (yield statements.REPLACE if replace else statements.HOLDER, holder):
            return held_by if answers else None
    raise StoreUnavailable(f"the unique key {job.unique!r} changes hands too fast")


def _copied(jobs: Sequence[NewJob], now: datetime, words: set[str]) -> Iterator[Row]:
    """The rows of COPY; adds to `words` what to notify, as PUSH does."""
    created = now.isoformat()
    for job in jobs:
        at, word = created, job.queue
        if job.due is not None or job.delay_s:
            due = values.due(job) or now + timedelta(seconds=values.delay(float(job.delay_s)))
            at, word = due.isoformat(), job.queue if due <= now else "@later"
        words.add(word)
        yield job.id, job.kind, job.queue, job.priority, at, created, None if _is_large(job) else job.payload


def kick_all(kicks: Sequence[Kick]) -> Push[None]:
    """As `Store.kick` says."""
    yield statements.KICK, kick_columns(kicks)


def kick_columns(kicks: Sequence[Kick]) -> dict[str, str]:
    return {
        "kinds": array(kick.kind for kick in kicks),
        "queues": array(kick.queue for kick in kicks),
        "priorities": array(kick.priority for kick in kicks),
        "payloads": array(kick.payload for kick in kicks),
    }


def _row(id: str | None, job: NewJob) -> Row:
    due, delay_s = values.due(job), values.delay(float(job.delay_s))
    return (id, job.kind, job.queue, job.priority, due, delay_s, job.unique, job.payload)


def _one(job: NewJob) -> dict[str, Any]:
    """`alone` is for whoever carries the statement out to say: it must not be said by mistake."""
    return {
        "id": job.id,
        "kind": job.kind,
        "queue": job.queue,
        "priority": job.priority,
        "due": values.due(job),
        "delay_s": values.delay(float(job.delay_s)),
        "payload": job.payload,
        "alone": False,
    }


def _columns(rows: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """`alone` as in `_one`."""
    return {
        "alone": False,
        "large": LARGE,
        **dict(zip(NEW_COLUMNS, map(array, zip(*rows, strict=True)), strict=True)),
    }
