"""How a service drains, is forced, closes, and replaces its children one by one."""

from __future__ import annotations

from runtime.model.exits import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, Exit
from runtime.model.jobs import Ending
from runtime.model.messages import Record, Recorded, Stop
from runtime.rules import budgets, fleet
from runtime.rules.fleet import SCHEDULER
from runtime.rules.stopping import FORCED_S, SECOND_STOP_S
from tests.rules.driver import Service

LEFT = Exit(code=EXIT_OK)


def test_a_stop_takes_back_what_was_not_begun_and_lets_the_rest_end() -> None:
    service = Service(grace_s=30.0).begin()
    held = service.claim("worker 1", 1, count=3)
    service.idle("worker 2")
    effects = service.ask_stop()
    assert service.said(effects, "worker 1", Stop)
    assert service.said(effects, "worker 2", Stop)
    [record] = service.said(effects, SCHEDULER, Record)
    assert record.unstarted == tuple(one.lease for one in held[1:])
    assert not service.killed(effects)
    effects = service.tick_until(service.now_s + 29.0)
    assert not service.killed(effects)


def test_jobs_are_told_a_second_before_the_grace_ends() -> None:
    service = Service(grace_s=30.0).begin()
    service.claim("worker 1", 4)
    service.idle("worker 2")
    service.ask_stop()
    assert not warned(service.tick_until(service.now_s + 28.9))
    assert warned(service.tick_until(service.now_s + 0.2)) == [fleet.Warn("worker 1", 4, "stop")]
    assert service.killed(service.tick_until(service.now_s + 1.0)) == ["worker 1", "worker 2"]


def test_jobs_are_told_at_once_when_there_is_no_grace() -> None:
    service = Service(grace_s=0.5).begin()
    service.claim("worker 1", 1)
    assert warned(service.ask_stop()) == [fleet.Warn("worker 1", 1, "stop")]


def warned(effects: list[fleet.Effect]) -> list[fleet.Warn]:
    return [effect for effect in effects if isinstance(effect, fleet.Warn)]


def test_leases_are_renewed_while_draining() -> None:
    from runtime.model.messages import Renew

    service = Service(grace_s=60.0).begin()
    [held] = service.claim("worker 1", 1)
    service.ask_stop()
    effects = service.tick_until(service.now_s + 25.0)
    assert next(renew.leases for renew in service.said(effects, SCHEDULER, Renew)) == (held.lease,)


def test_a_drained_service_closes_its_scheduler_last_and_exits_0() -> None:
    service = Service().begin()
    service.claim("worker 1", 1)
    service.idle("worker 2")
    service.ask_stop()
    service.end("worker 2", LEFT)
    effects = service.end("worker 1", LEFT)
    for record in service.said(service.effects, SCHEDULER, Record):
        assert not service.said(effects, SCHEDULER, Stop), "it still has something to write"
        effects = service.hear(SCHEDULER, Recorded(number=record.number))
    assert service.said(effects, SCHEDULER, Stop)
    assert service.codes(service.end(SCHEDULER, LEFT)) == [EXIT_OK]


def test_a_database_that_is_away_is_not_waited_for_when_there_is_nothing_to_tell_it() -> None:
    service = Service(workers=1, grace_s=60.0).begin()
    service.idle("worker 1")
    service.ask_stop()
    service.end("worker 1", LEFT)
    assert not service.said(service.tick_until(service.now_s + FORCED_S - 0.1), SCHEDULER, Stop)
    effects = service.tick_until(service.now_s + 0.2)
    assert service.said(effects, SCHEDULER, Stop)
    assert not service.killed(effects)
    assert service.codes(service.end(SCHEDULER, LEFT)) == [EXIT_OK]


def test_it_is_waited_for_to_hear_of_an_outcome() -> None:
    service = Service(workers=1, grace_s=60.0).begin()
    [held] = service.claim("worker 1", 1)
    service.ask_stop()
    [record] = service.said(service.end("worker 1", LEFT, [budgets.cancelled(held.lease)]), SCHEDULER, Record)
    effects = service.tick_until(service.now_s + 59.0)
    assert not service.said(effects, SCHEDULER, Stop)
    assert service.said(service.hear(SCHEDULER, Recorded(number=record.number)), SCHEDULER, Stop)


def test_no_child_is_started_while_draining() -> None:
    service = Service().begin()
    service.claim("worker 1", 1)
    service.ask_stop()
    effects = service.end("worker 1") + service.tick_until(service.now_s + 5.0)
    assert "worker 1" not in service.started(effects)


def test_a_worker_that_starts_is_not_waited_for() -> None:
    service = Service(workers=1)
    service.feed(fleet.Begun())
    assert service.killed(service.ask_stop()) == ["worker 1"]


def test_two_stop_signals_at_once_are_one() -> None:
    service = Service().begin()
    service.claim("worker 1", 1)
    service.ask_stop()
    service.now_s += SECOND_STOP_S - 0.01
    assert not service.killed(service.ask_stop())
    assert service.state.phase == "draining"


def test_a_second_stop_kills_and_releases_without_spending_anything() -> None:
    service = Service().begin()
    [held] = service.claim("worker 1", 1)
    service.idle("worker 2")
    service.ask_stop()
    service.now_s += SECOND_STOP_S
    assert sorted(service.killed(service.ask_stop())) == ["worker 1", "worker 2"]
    [record] = service.said(service.end("worker 1"), SCHEDULER, Record)
    assert [(one.lease, one.ending) for one in record.settlements] == [(held.lease, Ending.RELEASED)]
    assert record.dead is not None, "and what it held besides is given back"


def test_a_claim_that_is_heard_of_after_the_kill_is_released_too() -> None:
    service = Service().begin()
    service.idle("worker 1")
    service.ask_stop()
    service.now_s += 1.0
    service.ask_stop()
    service.claim("worker 1", 1)
    [record] = service.said(service.end("worker 1"), SCHEDULER, Record)
    assert [one.ending for one in record.settlements] == [Ending.RELEASED], "we killed it, it did not crash"


def test_a_forced_stop_ends_though_nothing_can_be_written() -> None:
    service = Service().begin()
    service.claim("worker 1", 1)
    service.ask_stop()
    service.now_s += 1.0
    service.ask_stop()
    service.end("worker 1")
    service.end("worker 2")
    effects = service.tick_until(service.now_s + FORCED_S)
    assert service.codes(effects) == [EXIT_INTERRUPTED]
    assert service.killed(effects) == [SCHEDULER]


def test_the_end_of_the_grace_forces() -> None:
    service = Service(grace_s=5.0).begin()
    service.claim("worker 1", 1)
    service.ask_stop()
    assert not service.killed(service.tick_until(service.now_s + 4.9))
    assert "worker 1" in service.killed(service.tick_until(service.now_s + 0.2))
    service.end("worker 1")
    service.end("worker 2")
    assert service.codes(service.tick_until(service.now_s + FORCED_S)) == [EXIT_FAILED]


def test_a_scheduler_that_does_not_leave_is_killed() -> None:
    service = Service(workers=1).begin()
    service.idle("worker 1")
    service.ask_stop()
    for record in service.said(service.end("worker 1", LEFT), SCHEDULER, Record):
        service.hear(SCHEDULER, Recorded(number=record.number))
    effects = service.tick_until(service.now_s + 10.0)
    assert service.killed(effects) == [SCHEDULER]
    assert service.codes(effects) == [EXIT_OK]


def test_a_stop_before_anything_is_up_ends_at_once() -> None:
    service = Service(workers=1)
    service.feed(fleet.Begun())
    service.ask_stop()
    assert service.codes(service.end("worker 1")) == [EXIT_OK]


# -- reload


def test_a_reload_replaces_one_child_after_the_other() -> None:
    service = Service(workers=2).begin()
    service.idle("worker 1")
    service.claim("worker 2", 1)
    effects = service.feed(fleet.Asked("reload"))
    replaced = []
    while asked := [
        effect.name
        for effect in effects
        if isinstance(effect, fleet.Say) and isinstance(effect.message, Stop)
    ]:
        assert len(asked) == 1, "one at a time"
        replaced += asked
        effects = service.end(asked[0], LEFT)
        assert service.started(effects) == asked
        assert not [
            effect for effect in effects if isinstance(effect, fleet.Say) and isinstance(effect.message, Stop)
        ]
        effects = service.ready(asked[0])
    assert sorted(replaced) == [SCHEDULER, "worker 1", "worker 2"]
    assert replaced[0] == "worker 1", "the idle one first"


def test_a_reload_stops_when_the_new_code_does_not_come_up() -> None:
    service = Service(workers=2).begin()
    service.idle("worker 1")
    service.claim("worker 2", 1)
    service.feed(fleet.Asked("reload"))
    service.end("worker 1", LEFT)
    effects = service.end("worker 1", Exit(code=EXIT_FAILED))
    assert "reload.stopped" in service.logged(effects)
    assert not service.said(service.tick_until(service.now_s + 60.0), "worker 2", Stop)


# -- until idle


def test_a_service_until_idle_stops_when_nothing_is_left() -> None:
    from runtime.model.messages import AnythingLeft, Nothing

    service = Service(until_idle=True).begin()
    service.claim("worker 1", 1)
    service.idle("worker 2")
    assert not service.said(service.tick_until(service.now_s + 3.0), SCHEDULER, AnythingLeft), "one works"
    service.idle("worker 1")
    assert service.said(service.tick_until(service.now_s + 1.0), SCHEDULER, AnythingLeft)
    effects = service.hear(SCHEDULER, Nothing())
    assert [len(service.said(effects, f"worker {n}", Stop)) for n in (1, 2)] == [1, 1]


def test_nothing_left_is_old_news_when_a_worker_has_claimed_since() -> None:
    from runtime.model.messages import Nothing

    service = Service(until_idle=True).begin()
    service.idle("worker 1")
    service.idle("worker 2")
    service.tick_until(service.now_s + 1.0)
    service.claim("worker 1", 1)
    service.hear(SCHEDULER, Nothing())
    assert service.state.phase == "running"


def test_an_unhealthy_service_does_not_exit_0() -> None:
    service = Service(workers=1)
    service.feed(fleet.Begun())
    service.ready(SCHEDULER)
    while not service.state.unhealthy:
        if service.state.slots["worker 1"].phase == "starting":
            service.end("worker 1", Exit(code=EXIT_FAILED))
        service.tick_until(service.now_s + 0.5)
    service.ask_stop()
    service.tick_until(service.now_s + 0.1)
    assert service.codes(service.end(SCHEDULER, LEFT)) == [EXIT_FAILED]
