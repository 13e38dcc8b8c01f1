"""Goal: nobody calls `wake`: what commits anywhere starts at once on whichever node has an idle worker."""

from __future__ import annotations

import psycopg

from tests.helpers.service import Stage

AT_ONCE_S = (
    3.0  # usual is a fifth of a second; the poll under lost words would come within 5 s, by chance sooner
)


def commit(on: Stage, payload: str) -> tuple[str, float]:
    """Push a nap by SQL in a transaction; its id and the database's clock at the commit."""
    with psycopg.connect(on.url) as conn:
        [[id]] = conn.execute("select tenure.push('nap', %s::jsonb)::text", (payload,)).fetchall()
    with psycopg.connect(on.url) as conn:
        [[now]] = conn.execute("select extract(epoch from clock_timestamp())::float8").fetchall()
    return id, now


def test_a_commit_wakes_an_idle_worker_on_any_node_at_once(on: Stage) -> None:
    on.run(workers=1)
    on.run(workers=1)
    long, long_at = commit(on, '{"seconds": 30}')
    start = on.started(long)
    assert start.at.timestamp() - long_at < AT_ONCE_S
    pids = {start.pid}
    for _ in range(3):
        short, short_at = commit(on, '{"seconds": 0}')
        start = on.started(short)
        assert start.at.timestamp() - short_at < AT_ONCE_S
        pids.add(start.pid)
        on.ended(short)
    assert len(pids) == 2, "the other node's worker, while the first one is busy"
    on.store.cancel(long)
