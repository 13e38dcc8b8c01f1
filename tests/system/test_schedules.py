"""Goal: one job a tick, however many schedulers there are. Method: three of them, killed and paused at random."""

from __future__ import annotations

import os
import random
import signal

from tests.helpers.service import Stage, children
from tests.helpers.waiting import wait_for


def test_three_schedulers_killed_and_paused_make_one_job_a_tick(on: Stage) -> None:
    chance = random.Random(7)
    services = [on.run(workers=1, handlers=("tests.system.clock_jobs",)) for _ in range(3)]
    while len(on.effects(what="tick")) < 60:
        service = chance.choice(services)
        victim = chance.choice(sorted(children(service.supervisor)))
        try:
            if chance.random() < 0.5:
                os.kill(victim, signal.SIGKILL)
            else:
                os.kill(victim, signal.SIGSTOP)
                seen = len(on.effects(what="tick"))
                wait_for(lambda: len(on.effects(what="tick")), lambda n, seen=seen: n > seen, within_s=20)
                os.kill(victim, signal.SIGCONT)
        except ProcessLookupError:
            pass
        seen = len(on.effects(what="tick"))
        wait_for(lambda: len(on.effects(what="tick")), lambda n, seen=seen: n > seen + 2, within_s=20)
    on.store.pause("by-clock")
    on.all_ended()
    dues = [view.due for view in on.store.jobs(kind="by-clock", limit=1000)]
    assert len(dues) == len(set(dues)), "each nominal time once"
    assert len(dues) >= 60
