"""What a supervisor does about leases, limits, deaths and silence; and that it never spins."""

from __future__ import annotations

import random

import pytest

from runtime.model.exits import EXIT_OK, EXIT_RECYCLED, Exit, Progress, Verdict
from runtime.model.jobs import Ending, Lease, Settlement, State
from runtime.model.messages import (
    AnythingLeft,
    CancelAsked,
    Claimed,
    Held,
    Limits,
    Nothing,
    Progressed,
    Record,
    Recorded,
    Renew,
    Renewals,
    Wake,
    Woken,
)
from runtime.rules import fleet, supervisor
from runtime.rules.attempts import BATCH_S, HOARD_S, SHARE_S, Glance
from runtime.rules.fleet import SCHEDULER
from runtime.rules.lease import fence_at_s
from tests.rules.driver import KIND, LIMITS, Service

# -- deaths


def test_a_dead_worker_is_put_on_record_before_it_is_replaced() -> None:
    service = Service().begin()
    [held] = service.claim("worker 1", 1)
    effects = service.end("worker 1", Exit(signal=11))
    [record] = service.said(effects, SCHEDULER, Record)
    [settled] = record.settlements
    assert (settled.lease, settled.ending, settled.state) == (held.lease, Ending.CRASHED, State.QUEUED)
    assert settled.certificate is not None
    assert settled.certificate.signal == 11
    assert record.dead is not None
    assert service.started(effects) == ["worker 1"]


@pytest.mark.parametrize(
    ("limits", "after_s", "how", "error", "state", "retry_in_s"),
    [
        (Limits(timeout_s=60.0), 0.0, Exit(signal=11), "signal", "queued", 0.0),
        (Limits(timeout_s=60.0, max_crashes=1), 0.0, Exit(code=3), "exit", "dead", 0.0),
        (Limits(timeout_s=2.0), 3.5, Exit(signal=9), "TimedOut", "dead", 0.0),
        (
            Limits(timeout_s=2.0, retries=1, delay_first_s=7.0, delay_cap_s=7.0),
            3.5,
            Exit(signal=9),
            "TimedOut",
            "queued",
            7.0,
        ),
        (Limits(timeout_s=60.0, stall_s=2.0), 3.5, Exit(signal=9), "Stalled", "dead", 0.0),
    ],
    ids=["killed", "exited-dead", "timeout-dead", "timeout-retry", "stalled-dead"],
)
def test_a_death_is_one_line_with_job_kind_attempt_error_and_wait(
    limits: Limits, after_s: float, how: Exit, error: str, state: str, retry_in_s: float
) -> None:
    service = Service(limits).begin()
    [held] = service.claim("worker 1", 1)
    service.tick_until(service.now_s + after_s)
    effects = service.end("worker 1", how)
    [line] = [one for one in effects if isinstance(one, fleet.Log) and one.event == "attempt.ended"]
    told = {"job": held.lease.id, "kind": held.kind, "attempt": held.attempt, "error": error}
    assert told | {"state": state, "retry_in_s": retry_in_s} == {
        name: value for name, value in line.fields.items() if name not in ("code", "ending", "how")
    }
    assert line.level == "warning"


def test_what_the_journal_holds_has_ended_and_is_no_crash() -> None:
    service = Service().begin()
    [held] = service.claim("worker 1", 1)
    done = Settlement(lease=held.lease, ending=Ending.DONE, state=State.DONE)
    [record] = service.said(service.end("worker 1", settlements=[done]), SCHEDULER, Record)
    assert record.settlements == (done,)


def test_records_are_sent_again_to_a_new_scheduler_until_they_are_confirmed() -> None:
    service = Service().begin()
    service.claim("worker 1", 1)
    [first] = service.said(service.end("worker 1"), SCHEDULER, Record)
    service.end(SCHEDULER)
    service.tick_until(service.now_s + 1.0)
    assert service.said(service.ready(SCHEDULER), SCHEDULER, Record) == [first]


def test_a_record_that_no_scheduler_survives_is_dropped_and_the_next_one_goes_through() -> None:
    service = Service().begin()
    for worker in ("worker 1", "worker 2"):
        service.claim(worker, 1)
        service.end(worker)
    first, second = list(service.state.records)
    for _ in range(3):
        assert service.state.records[0] == first
        service.end(SCHEDULER)
        service.tick_until(service.now_s + 10.0)
        again = service.said(service.ready(SCHEDULER), SCHEDULER, Record)
    assert again == [second]
    service.hear(SCHEDULER, Recorded(number=first.number))
    service.end(SCHEDULER)
    service.tick_until(service.now_s + 2.0)
    assert service.said(service.ready(SCHEDULER), SCHEDULER, Record) == []


def test_a_recycled_worker_is_replaced_at_once_and_blamed_for_nothing() -> None:
    service = Service().begin()
    service.idle("worker 1")
    effects = service.end("worker 1", Exit(code=EXIT_RECYCLED))
    assert service.started(effects) == ["worker 1"]
    assert service.state.health["worker"].deaths == 0


def test_a_worker_killed_for_starting_too_slowly_charges_no_job() -> None:
    service = Service(workers=1, ready_within_s=5.0)
    service.feed(fleet.Begun())
    service.ready(SCHEDULER)
    assert service.killed(service.tick_until(service.now_s + 5.0)) == ["worker 1"]
    service.ready("worker 1")
    service.claim("worker 1", 1)
    effects = service.end("worker 1")
    [record] = service.said(effects, SCHEDULER, Record)
    assert [one.ending for one in record.settlements] == [Ending.RELEASED]
    assert service.state.health["worker"].deaths == 1


def test_garbage_kills_its_sender_only_and_charges_no_job() -> None:
    service = Service().begin()
    service.claim("worker 1", 1)
    assert service.killed(service.feed(fleet.Garbled("worker 1", "too long"))) == ["worker 1"]
    [record] = service.said(service.end("worker 1"), SCHEDULER, Record)
    assert [one.ending for one in record.settlements] == [Ending.RELEASED]


# -- limits


@pytest.mark.parametrize(
    ("limits", "ending"),
    [
        (Limits(timeout_s=2.0, retries=2), Ending.TIMED_OUT),
        (Limits(timeout_s=60.0, stall_s=2.0, retries=2), Ending.STALLED),
    ],
)
def test_an_overrun_is_warned_of_and_killed_a_second_later(limits: Limits, ending: Ending) -> None:
    service = Service(limits).begin()
    service.claim("worker 1", 1)
    assert not service.killed(service.tick_until(service.now_s + 1.99))
    effects = service.tick_until(service.now_s + 0.02)
    assert [type(effect) for effect in effects if isinstance(effect, fleet.Warn | fleet.DumpStacks)] == [
        fleet.DumpStacks,
        fleet.Warn,
    ]
    assert not service.killed(effects)
    assert service.killed(service.tick_until(service.now_s + 1.0)) == ["worker 1"]
    [record] = service.said(service.end("worker 1"), SCHEDULER, Record)
    assert [one.ending for one in record.settlements] == [ending]


def test_a_lost_lease_is_no_reason_to_kill_a_handler_that_has_settled_it() -> None:
    service = Service(lease_s=30.0, renew_every_s=10.0).begin()
    service.renews = False
    [held] = service.claim("worker 1", 1)
    for settles, dies in ((True, []), (False, ["worker 1"])):
        service.boards["worker 1"] = Glance(1, service.now_s, settles=settles)
        effects = service.tick_until(service.now_s + 10.5)
        [renew] = service.said(effects, SCHEDULER, Renew)
        effects += service.hear(SCHEDULER, Renewals(sent_s=renew.sent_s, ok=True, lost=(held.lease,)))
        assert service.killed(effects) == dies


def test_a_worker_is_told_how_long_renewed_leases_last() -> None:
    service = Service(lease_s=30.0, renew_every_s=10.0).begin()
    service.renews = False
    service.claim("worker 1", 5)
    [renew] = service.said(service.tick_until(service.now_s + 10.5), SCHEDULER, Renew)
    effects = service.hear(SCHEDULER, Renewals(sent_s=renew.sent_s, ok=True))
    assert [effect for effect in effects if isinstance(effect, fleet.Hold)] == [
        fleet.Hold("worker 1", 5, fence_at_s(renew.sent_s, 30.0))
    ]


def test_a_limit_is_forgotten_when_the_job_ends_in_time() -> None:
    service = Service(Limits(timeout_s=2.0)).begin()
    service.claim("worker 1", 1)
    service.tick_until(service.now_s + 2.5)
    service.boards["worker 1"] = Glance()
    assert not service.killed(service.tick_until(service.now_s + 2.0))


def test_a_kill_meant_for_one_job_charges_no_other() -> None:
    service = Service(Limits(timeout_s=2.0)).begin()
    service.claim("worker 1", 1)
    service.tick_until(service.now_s + 3.5)
    service.claim("worker 1", 2)  # it had ended just before the kill, and this one was begun
    [record] = service.said(service.end("worker 1"), SCHEDULER, Record)
    [settled] = record.settlements
    assert settled.ending is Ending.RELEASED
    assert settled.certificate is not None
    assert settled.certificate.verdict is Verdict.ENVIRONMENT


def test_too_much_memory_is_a_crash_at_once() -> None:
    service = Service(Limits(timeout_s=60.0, memory_bytes=100)).begin()
    service.claim("worker 1", 1)
    service.boards["worker 1"] = Glance(1, service.now_s, memory_bytes=101)
    assert service.killed(service.tick_until(service.now_s + 0.3)) == ["worker 1"]
    [record] = service.said(service.end("worker 1"), SCHEDULER, Record)
    assert [one.ending for one in record.settlements] == [Ending.CRASHED]


def test_a_cancelled_job_is_told_and_then_killed() -> None:
    service = Service().begin()
    [held] = service.claim("worker 1", 1)
    effects = service.hear(SCHEDULER, CancelAsked(leases=(held.lease,)))
    assert [effect.why for effect in effects if isinstance(effect, fleet.Warn)] == ["cancel"]
    assert service.killed(service.tick_until(service.now_s + 1.1)) == ["worker 1"]
    [record] = service.said(service.end("worker 1"), SCHEDULER, Record)
    assert [one.state for one in record.settlements] == [State.CANCELLED]


# -- leases


def test_only_leases_of_live_workers_are_renewed_by_name() -> None:
    service = Service().begin()
    [gone] = service.claim("worker 1", 1)
    [held] = service.claim("worker 2", 1)
    service.end("worker 1")
    effects = service.tick_until(service.now_s + 10.0)
    named = [lease for renew in service.said(effects, SCHEDULER, Renew) for lease in renew.leases]
    assert held.lease in named
    assert gone.lease not in named


def test_a_job_whose_lease_cannot_be_renewed_is_dead_before_the_lease_ends() -> None:
    service = Service(lease_s=30.0, renew_every_s=10.0).begin()
    service.renews = False
    service.claim("worker 1", 1)
    claimed_s = service.now_s
    while not (killed := service.killed(service.tick_until(service.now_s + 0.5))) or killed == [SCHEDULER]:
        for sent_s in list(service.state.renewing):
            service.hear(SCHEDULER, Renewals(sent_s=sent_s, ok=False))
    assert killed == ["worker 1"]
    assert claimed_s + 25.0 < service.now_s < claimed_s + 30.0
    [record] = service.said(service.end("worker 1"), SCHEDULER, Record)
    assert [one.ending for one in record.settlements] == [Ending.RELEASED]


@pytest.mark.parametrize("how", ["timeout", "stall", "cancel"])
def test_no_time_to_end_in_good_order_outlasts_the_lease(how: str) -> None:
    limits = Limits(timeout_s=20.0 if how == "timeout" else 60.0, stall_s=20.0 if how == "stall" else None)
    service = Service(limits, kill_after_s=60.0).begin()
    service.renews = False
    claimed_s, [held] = service.now_s, service.claim("worker 1", 1)
    effects = service.tick_until(service.now_s + 21.0)
    if how == "cancel":
        effects += service.hear(SCHEDULER, CancelAsked(leases=(held.lease,)))
    assert how in [effect.why for effect in effects if isinstance(effect, fleet.Warn)]
    assert "worker 1" not in service.killed(effects)
    assert "worker 1" in service.killed(service.tick_until(fence_at_s(claimed_s, 30.0)))


def test_a_confirmed_renewal_counts_from_when_it_was_sent() -> None:
    service = Service(lease_s=30.0, renew_every_s=10.0).begin()
    service.renews = False
    service.claim("worker 1", 1)
    service.tick_until(service.now_s + 10.0)
    [sent_s] = service.state.renewing
    service.now_s += 5.0
    service.hear(SCHEDULER, Renewals(sent_s=sent_s, ok=True))
    batch = service.state.slots["worker 1"].batch
    assert batch is not None
    assert batch.confirmed_s == sent_s


def test_a_job_whose_lease_is_lost_is_killed_at_once() -> None:
    service = Service().begin()
    service.renews = False
    [held] = service.claim("worker 1", 1)
    service.tick_until(service.now_s + 10.0)
    [sent_s] = service.state.renewing
    assert service.killed(service.hear(SCHEDULER, Renewals(sent_s=sent_s, ok=True, lost=(held.lease,)))) == [
        "worker 1"
    ]


def test_a_silent_scheduler_is_killed() -> None:
    service = Service(lease_s=60.0, renew_every_s=2.0).begin()
    service.renews = False
    service.claim("worker 1", 1)
    assert SCHEDULER in service.killed(service.tick_until(service.now_s + 9.0))
    effects = service.end(SCHEDULER) + service.tick_until(service.now_s + 1.0)
    assert SCHEDULER in service.started(effects)


def test_a_supervisor_that_was_late_hears_what_waits_before_it_calls_anybody_silent() -> None:
    service = Service(lease_s=60.0, renew_every_s=2.0, ready_within_s=5.0).begin()
    service.renews = False
    service.claim("worker 1", 1)
    service.tick_until(service.now_s + 2.0)
    [sent_s] = service.state.renewing
    assert service.started(service.end("worker 2", Exit(code=EXIT_RECYCLED))) == ["worker 2"]
    service.now_s += 10.0
    effects = service.hear("worker 1", Claimed(first=2, sent_s=service.now_s, claims=()))
    effects += service.ready("worker 2") + service.hear(SCHEDULER, Renewals(sent_s=sent_s, ok=True))
    effects += service.feed(fleet.Tick())
    assert (service.killed(effects), service.logged(effects)) == ([], ["child.ready"])


@pytest.mark.parametrize("count", [1, 3])
def test_what_is_hoarded_is_taken_back(count: int) -> None:
    service = Service().begin()
    held = service.claim("worker 1", 1, count=count, begins=count > 1)
    begun = 1 if count > 1 else 0
    effects = service.tick_until(service.now_s + BATCH_S + 1.0)
    [record] = service.said(effects, SCHEDULER, Record)
    assert record.unstarted == tuple(one.lease for one in held[begun:])


@pytest.mark.parametrize("idles", ["before", "after", "never"])
def test_what_a_worker_has_not_begun_is_taken_back_for_one_that_idles(idles: str) -> None:
    service = Service().begin()
    if idles == "before":
        service.idle("worker 2")
    held = service.claim("worker 1", 1, count=9)
    if idles == "after":
        service.idle("worker 2")
    records = service.said(service.tick_until(service.now_s + SHARE_S), SCHEDULER, Record)
    taken = [] if idles == "never" else [tuple(one.lease for one in held[1:])]
    assert [record.unstarted for record in records] == taken


def test_for_each_worker_that_idles_one_batch_is_taken_back() -> None:
    service = Service(workers=4).begin()
    held = [service.claim(f"worker {number}", 1, count=9) for number in (1, 2, 3)]
    service.idle("worker 4")
    records = service.said(service.tick_until(service.now_s + SHARE_S), SCHEDULER, Record)
    assert [record.unstarted for record in records] == [tuple(one.lease for one in held[0][1:])]
    service.hear(SCHEDULER, Woken())
    before = len(service.effects)
    service.idle("worker 4")
    records = service.said(service.effects[before:], SCHEDULER, Record)
    records += service.said(service.tick_until(service.now_s + SHARE_S), SCHEDULER, Record)
    assert [record.unstarted for record in records] == [tuple(one.lease for one in held[1][1:])]


def test_where_nothing_was_left_to_take_back_the_next_batch_is_looked_at() -> None:
    service = Service(workers=3).begin()
    service.claim("worker 1", 1, count=9)
    service.tokens["worker 1"] = ()  # it has begun the last one meanwhile
    held = service.claim("worker 2", 1, count=9)
    service.idle("worker 3")
    records = service.said(service.tick_until(service.now_s + HOARD_S / 2), SCHEDULER, Record)
    assert [record.unstarted for record in records] == [tuple(one.lease for one in held[1:])]


@pytest.mark.parametrize("how", ["woken", "dead"])
def test_nothing_is_taken_back_for_a_worker_that_no_longer_idles(how: str) -> None:
    service = Service().begin()
    service.idle("worker 2")
    if how == "woken":
        service.hear(SCHEDULER, Woken())
    else:
        service.end("worker 2")
    service.claim("worker 1", 1, count=9)
    assert not service.said(service.tick_until(service.now_s + SHARE_S), SCHEDULER, Record)


def test_a_batch_that_is_as_good_as_over_is_left_to_its_worker_though_another_idles() -> None:
    service = Service().begin()
    service.idle("worker 2")
    service.claim("worker 1", 1, count=9)
    for number in range(1, 10):
        service.boards["worker 1"] = Glance(number, service.now_s)
        effects = service.tick_until(service.now_s + SHARE_S / 10)
        assert not service.said(effects, SCHEDULER, Record)


def test_a_batch_whose_jobs_go_on_is_left_to_its_worker() -> None:
    service = Service().begin()
    claimed_s, held = service.now_s, service.claim("worker 1", 1, count=9)
    while service.now_s < claimed_s + BATCH_S - HOARD_S:
        begun = service.boards["worker 1"].number + 1
        service.boards["worker 1"] = Glance(begun, service.now_s)
        effects = service.tick_until(service.now_s + 0.9 * HOARD_S)
        assert not service.said(effects, SCHEDULER, Record)
    [record] = service.said(service.tick_until(service.now_s + 2 * HOARD_S), SCHEDULER, Record)
    assert held[-1].lease in record.unstarted


def test_claims_taken_before_they_were_heard_of_go_back_when_they_are() -> None:
    service = Service().begin()
    service.claim("worker 1", 1, count=2)
    service.tokens["worker 1"] = (3, 4)  # of its next batch
    service.tick_until(service.now_s + BATCH_S)
    held = [Lease(f"next-{number}", 1) for number in (3, 4)]
    claims = tuple(Held(lease, KIND, 1, 0, 0) for lease in held)
    effects = service.hear("worker 1", Claimed(first=3, sent_s=service.now_s, claims=claims))
    [record] = service.said(effects, SCHEDULER, Record)
    assert record.unstarted == tuple(held)


def test_claims_taken_two_batches_ahead_are_not_forgotten_when_the_next_one_is_revoked_too() -> None:
    service = Service().begin()
    service.claim("worker 1", 1, count=2)
    service.tokens["worker 1"] = (5, 6)  # of the batch after its next one
    service.tick_until(service.now_s + BATCH_S)
    for first, unstarted in ((3, ()), (5, (5, 6))):
        leases = tuple(Lease(f"next-{number}", 1) for number in (first, first + 1))
        claims = tuple(Held(lease, KIND, 1, 0, 0) for lease in leases)
        late = Claimed(first=first, sent_s=service.now_s - BATCH_S, claims=claims)
        effects = service.hear("worker 1", late)
        service.tokens["worker 1"] = ()
        effects += service.tick_until(service.now_s + HOARD_S)
        records = service.said(effects, SCHEDULER, Record)
        found = [lease for record in records for lease in record.unstarted]
        assert found == [Lease(f"next-{number}", 1) for number in unstarted]


def test_a_claim_that_is_heard_of_when_its_lease_has_ended_is_looked_at_at_once() -> None:
    service = Service(lease_s=2.0, renew_every_s=0.5).begin()
    service.boards["worker 1"] = Glance(1, service.now_s - 3.0)
    claims = (Held(Lease("a", 1), KIND, 1, 0, 0),)
    late = Claimed(first=1, sent_s=service.now_s - 3.0, claims=claims)
    assert service.killed(service.hear("worker 1", late)) == ["worker 1"]


# -- waking


def test_a_wake_goes_to_one_idle_worker_and_a_full_batch_wakes_the_next() -> None:
    service = Service().begin()
    service.idle("worker 1")
    service.idle("worker 2")
    effects = service.hear(SCHEDULER, Woken())
    assert [len(service.said(effects, f"worker {n}", Wake)) for n in (1, 2)] == [1, 0]
    claims = (Held(Lease("a", 1), KIND, 1, 0, 0),)
    effects = service.hear("worker 1", Claimed(first=1, sent_s=service.now_s, claims=claims, full=True))
    assert service.said(effects, "worker 2", Wake)


def test_a_wake_is_kept_for_the_first_worker_that_idles() -> None:
    service = Service(workers=1).begin()
    service.claim("worker 1", 1)
    service.hear(SCHEDULER, Woken())
    before = len(service.effects)
    service.idle("worker 1")
    assert service.said(service.effects[before:], "worker 1", Wake)


def test_a_wake_that_died_with_its_worker_goes_to_another() -> None:
    service = Service().begin()
    service.idle("worker 1")
    service.idle("worker 2")
    service.hear(SCHEDULER, Woken())
    assert service.said(service.end("worker 1"), "worker 2", Wake)


def test_progress_is_passed_on_once_and_only_when_it_is_new() -> None:
    service = Service().begin()
    [held] = service.claim("worker 1", 1)
    service.boards["worker 1"] = Glance(1, service.now_s, progress_s=service.now_s, progress=Progress(done=3))
    effects = service.tick_until(service.now_s + 5.0)
    [progressed] = service.said(effects, SCHEDULER, Progressed)
    assert progressed.entries == ((held.lease, Progress(done=3)),)


def test_progress_is_passed_on_at_most_once_a_second() -> None:
    service = Service().begin()
    service.claim("worker 1", 1)
    effects = []
    for step in range(1, 101):
        board = Glance(1, service.now_s, progress_s=service.now_s, progress=Progress(done=step))
        service.boards["worker 1"] = board
        effects += service.tick_until(service.now_s + 0.05)
    told = service.said(effects, SCHEDULER, Progressed)
    assert 4 <= len(told) <= 6, "in five seconds"
    assert len({entry[1].done for one in told for entry in one.entries}) == len(told)


# -- time


@pytest.mark.parametrize("seed", range(150))
def test_no_tick_leaves_the_next_one_due_at_the_same_moment(seed: int) -> None:
    """A life of random events; after each, Ticks at `next_at` move on. `Service.tick_until` says so."""
    draw = random.Random(seed)
    limits = Limits(
        timeout_s=draw.choice([0.5, 5.0, 900.0]),
        stall_s=draw.choice([None, 0.3]),
        memory_bytes=draw.choice([None, 100]),
    )
    service = Service(
        limits,
        now_s=draw.uniform(0.0, 1e6),
        workers=draw.choice([1, 2, 4]),
        until_idle=draw.random() < 0.3,
        lease_s=draw.choice([2.0, 30.0]),
        renew_every_s=0.7,
        fencing=draw.random() < 0.9,
    )
    service.renews = False
    service.feed(fleet.Begun())
    numbers = dict.fromkeys(service.state.slots, 1)
    for _ in range(120):
        name = draw.choice(list(service.state.slots))
        slot = service.state.slots[name]
        acts = ["wait", "wait", "wait", "woken", "renewed", "nothing", "recorded"]
        if slot.alive:
            acts += ["end", "end", "garble"]
        if slot.phase == "starting":
            acts += ["ready"] * 5
        elif slot.is_worker and slot.alive and slot.kinds:
            acts += ["claim"] * 4 + ["idle"] * 3
        if draw.random() < 0.02:
            acts = ["stop", "reload"]
        match draw.choice(acts):
            case "wait":
                service.tick_until(service.now_s + draw.expovariate(1.0))
            case "woken":
                service.hear(SCHEDULER, Woken())
            case "renewed":
                for sent_s in list(service.state.renewing):
                    service.hear(SCHEDULER, Renewals(sent_s=sent_s, ok=draw.random() < 0.7))
            case "nothing":
                service.hear(SCHEDULER, Nothing())
            case "recorded":
                service.hear(SCHEDULER, Recorded(number=service.state.record_number))
            case "end":
                service.end(
                    name,
                    draw.choice([Exit(signal=9), Exit(code=1), Exit(code=EXIT_OK), Exit(code=EXIT_RECYCLED)]),
                )
            case "garble":
                service.feed(fleet.Garbled(name, "no message"))
            case "ready":
                service.ready(name)
            case "claim":
                count = draw.randint(1, 3)
                service.claim(name, numbers[name], count, begins=draw.random() < 0.8)
                numbers[name] += count
            case "idle":
                service.idle(name)
            case "stop":
                service.ask_stop()
            case "reload":
                service.feed(fleet.Asked("reload"))
        if service.state.phase == "finished":
            break
        now_s = service.now_s
        service.tick_until(now_s)
        assert supervisor.next_at(service.state) > now_s


def test_an_idle_service_asks_for_nothing_but_its_rounds() -> None:
    service = Service(LIMITS, renew_every_s=10.0).begin()
    service.idle("worker 1")
    service.idle("worker 2")
    service.tick_until(service.now_s + 60.0)
    before = len(service.effects)
    service.tick_until(service.now_s + 60.0)
    assert len(service.effects) - before <= 8, "the node's report every ten seconds"
    assert not service.said(service.effects, SCHEDULER, AnythingLeft)
