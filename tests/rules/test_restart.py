"""When dead children start again: rarely while all fail, at once after a long life, apart from each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.model.exits import EXIT_FAILED, Exit
from runtime.rules.fleet import SCHEDULER, Begun
from runtime.rules.restart import PROBE_S, Health, RestartPolicy, after_death, after_ready, is_unhealthy
from tests.rules.driver import Service

POLICY = RestartPolicy()
FAILS = Exit(code=EXIT_FAILED)


def starts_of_workers(service: Service) -> list[float]:
    return [at_s for at_s, name in service.starts if name != SCHEDULER]


def live(service: Service, until_s: float, *, up_s: float | None) -> None:
    """Workers that never come up (None), or die `up_s` after they were ready, for some time."""
    service.feed(Begun())
    while service.now_s < until_s:
        for name, slot in list(service.state.slots.items()):
            if slot.phase == "starting" and name == SCHEDULER:
                service.ready(name)
            elif slot.phase == "starting" and up_s is None:
                service.end(name, FAILS)
            elif slot.phase == "starting":
                service.ready(name)
            elif slot.phase == "up" and slot.is_worker and service.now_s >= slot.since_s + (up_s or 0.0):
                service.end(name, FAILS)
        service.tick_until(service.now_s + 0.05)


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_workers_that_never_come_up_are_started_at_most_8_times_in_a_minute(workers: int) -> None:
    service = Service(workers=workers)
    live(service, service.now_s + 60.0, up_s=None)
    assert 5 <= len(starts_of_workers(service)) <= 8
    assert service.state.unhealthy


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_workers_that_die_soon_after_they_came_up_do_not_storm(workers: int) -> None:
    service = Service(workers=workers)
    live(service, service.now_s + 60.0, up_s=0.05)
    assert len(starts_of_workers(service)) <= max(8, workers + 3), "each once, and then probes"
    assert service.state.unhealthy


def test_a_crash_after_ten_good_minutes_is_made_good_within_a_second() -> None:
    service = Service(workers=2).begin()
    service.tick_until(service.now_s + 600.0)
    service.end("worker 1", Exit(signal=11))
    died_s = service.now_s
    service.tick_until(died_s + 1.0)
    assert ("worker 1", True) in [(name, at_s >= died_s) for at_s, name in service.starts]
    assert not service.state.unhealthy


def test_a_flapping_worker_stops_no_other() -> None:
    service = Service(workers=3).begin()
    for _ in range(200):
        slot = service.state.slots["worker 1"]
        if slot.phase == "starting":
            service.ready("worker 1")
        elif slot.phase == "up":
            service.end("worker 1", FAILS)
        service.tick_until(service.now_s + 0.5)
    others = [name for _, name in service.starts if name not in ("worker 1", SCHEDULER)]
    assert sorted(others) == ["worker 2", "worker 3"], "started once and never again"
    assert [service.state.slots[name].phase for name in ("worker 2", "worker 3")] == ["up", "up"]
    assert not service.killed(service.effects)


def test_the_other_workers_wait_for_a_probe_and_follow_when_it_has_lived() -> None:
    service = Service(workers=4).begin()
    for number in (1, 2, 3, 4):
        service.end(f"worker {number}", FAILS)
    before = len(service.starts)
    while service.state.slots["worker 1"].phase != "starting":
        service.tick_until(service.now_s + 0.1)
    assert len(service.starts) == before + 1, "one probe"
    service.ready("worker 1")
    service.tick_until(service.now_s + 0.9)
    assert len(service.starts) == before + 1, "it has not lived long enough yet"
    service.tick_until(service.now_s + 0.2)
    assert len(service.starts) == before + 4


def test_a_death_under_a_job_slows_nobody_down() -> None:
    service = Service(workers=1).begin()
    service.claim("worker 1", 1)
    effects = service.end("worker 1", Exit(signal=11))
    assert service.started(effects) == ["worker 1"], "at once"
    assert service.state.health["worker"].deaths == 0


def test_a_failed_fork_is_a_death() -> None:
    from runtime.rules import fleet, supervisor

    state = fleet.initial(Service().state.settings)
    supervisor.step(state, fleet.Begun(), 1.0)
    supervisor.step(state, fleet.SpawnFailed("worker 1", "no memory", 0.0), 1.0)
    assert state.health["worker"].deaths == 1
    assert state.slots["worker 1"].phase == "waiting"


@given(lives=st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(0.0, 1.0, exclude_max=True)), max_size=30))
def test_the_delay_stays_within_the_policy(lives: list[tuple[float, float]]) -> None:
    health, now_s = Health(), 0.0
    for lived_s, chance in lives:
        now_s += lived_s
        before = health
        health = after_death(health, lived_s, now_s, chance, POLICY)
        delay_s = health.not_before_s - now_s
        assert POLICY.first_delay_s * 0.999 <= delay_s <= POLICY.max_delay_s * 1.1 + 1e-6
        if lived_s >= POLICY.healthy_after_s:
            assert health.deaths == 1
            assert delay_s <= POLICY.first_delay_s * 1.1 + 1e-6
        else:
            assert health.deaths == before.deaths + 1


def test_health_comes_back_in_two_steps() -> None:
    sick = Health(deaths=6, not_before_s=10.0)
    assert is_unhealthy(sick, POLICY)
    assert after_ready(sick, 10.0, 10.9, POLICY) == sick
    proven = after_ready(sick, 10.0, 11.0, POLICY)
    assert proven.proven
    assert not is_unhealthy(proven, POLICY)
    assert after_ready(proven, 10.0, 20.0, POLICY) == Health(proven=True)


@given(since_s=st.floats(0.0, 1e7))
def test_health_comes_at_the_very_moment_that_the_next_tick_is_set_for(since_s: float) -> None:
    """Not one rounding later: the Tick would be due again and again at one moment."""
    sick = Health(deaths=3)
    assert after_ready(sick, since_s, since_s + PROBE_S, POLICY).proven
    proven = Health(deaths=3, proven=True)
    policy = RestartPolicy(healthy_after_s=0.7)
    assert after_ready(proven, since_s, since_s + policy.healthy_after_s, policy) == Health(proven=True)
