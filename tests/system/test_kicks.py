"""Goal: a kick is a run within a second, also behind one that is on. Method: one service, no polling in reach."""

from __future__ import annotations

import psycopg

from runtime import Queue
from runtime.model.jobs import State
from tests.helpers.service import Stage
from tests.helpers.waiting import wait_for
from tests.system import jobs as _  # noqa: F401 - defines what is kicked


def test_a_kick_is_a_run_within_a_second_and_many_are_one(on: Stage) -> None:
    on.run(workers=2)
    failed = on.push("kicks", fails=True)
    on.ended(failed, State.DEAD)
    with Queue(on.url) as queue, psycopg.connect(on.url) as conn:
        queue.kick("kicked", conn=conn)
        conn.rollback()

        on.ended(on.push("kicks"))
        wait_for(lambda: on.effects(what="start"), lambda found: len(found) == 1, within_s=1.0)

        for _ in range(200):
            queue.kick("kicked")
            queue.kick("kicked", conn=conn)
        conn.commit()
        queue.kick("kicked")
        conn.execute("insert into effect (what) values ('let go')")
        conn.commit()
        wait_for(lambda: on.effects(what="stop"), lambda found: len(found) == 2, within_s=1.0)
        on.all_ended()
        assert len(on.effects(what="start")) == 2, "the first, and one for all kicks since"
        assert not on.store.outlook(["*"]).kicked

        began = on.store.now()
        queue.kick("kicked")
        runs = wait_for(lambda: on.effects(what="start"), lambda found: len(found) == 3, within_s=1.0)
        assert runs[-1].at > began
    on.all_ended()
    assert on.services[0].stop() == 0
