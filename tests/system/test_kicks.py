"""Goal: a kick is a run within a second, also behind one that is on. Method: one service, no polling in reach."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import psycopg

from runtime import Queue
from runtime.model.jobs import State
from tests.helpers.service import Stage
from tests.helpers.waiting import wait_for
from tests.system import jobs as _  # noqa: F401 - defines what is kicked

KICKERS = 20


def test_a_kick_is_a_run_within_a_second_and_many_are_one(on: Stage) -> None:
    on.run(workers=2)
    failed = on.push("kicks", fails=True)
    on.ended(failed, State.DEAD)
    with Queue(on.url) as queue, psycopg.connect(on.url) as conn:
        queue.kick("kicked", conn=conn)
        conn.rollback()

        on.ended(on.push("kicks"))
        wait_for(lambda: on.effects(what="start"), lambda found: len(found) == 1, within_s=1.0)

        kick_at_once(on.url, transactions=42)
        queue.kick("kicked")
        conn.execute("insert into effect (what) values ('let go')")
        conn.commit()
        wait_for(lambda: on.effects(what="stop"), lambda found: len(found) == 2, within_s=1.0)
        on.all_ended()
        assert len(on.effects(what="start")) == 2, "the first, and one for all 10,000 kicks since"
        assert not on.store.outlook(["*"]).kicked

        began = on.store.now()
        queue.kick("kicked")
        runs = wait_for(lambda: on.effects(what="start"), lambda found: len(found) == 3, within_s=1.0)
        assert runs[-1].at > began

        last = kick_at_once(on.url, transactions=10)
        wait_for(lambda: on.store.pending(["kicked"], ["*"]), lambda is_pending: not is_pending)
        runs = on.effects(what="start")
        assert runs[-1].at > last, "one that began after the last kick, while runs come and go"
        assert runs[-1].at > max(stop.at for stop in on.effects(what="stop")[:-1]), "never two at once"
    assert on.services[0].stop() == 0


def kick_at_once(url: str, transactions: int) -> datetime:
    """Kick from many connections, 2 to 22 times in a transaction; the time of the last kick, before its commit."""

    def kicks(number: int) -> datetime:
        last = datetime.min.replace(tzinfo=UTC)
        with Queue(url) as queue, psycopg.connect(url) as conn:
            for transaction in range(transactions):
                queue.kick("kicked", conn=conn)
                many = "select tenure.kick('kicked'), clock_timestamp() from generate_series(1, %s)"
                *_, (_, last) = conn.execute(many, [1 + (number + transaction) % 21])
                conn.commit()
        return last

    with ThreadPoolExecutor(KICKERS) as kickers:
        return max(kickers.map(kicks, range(KICKERS)))
