"""The contract of a job store, tried on each kind of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from runtime.edges.ids import new_id
from runtime.edges.store import Store
from runtime.edges.values import REFUSED
from runtime.model.exits import Certificate, Progress, Verdict
from runtime.model.jobs import (
    HISTORY_LIMIT,
    Code,
    Ending,
    Failure,
    Holder,
    JobView,
    Kick,
    Lease,
    NewSchedule,
    NodeView,
    QueueCount,
    Settlement,
    State,
    WorkerView,
)
from tests.edges.conftest import Clock
from tests.helpers.jobs import HOLDER, new, settlement, want


def status(store: Store, id: str) -> JobView:
    view = store.status(id)
    assert view is not None
    return view


def claimed_ids(store: Store, **given) -> list[str]:
    return [claim.lease.id for claim in store.claim(want(**given))]


# -- push


def test_a_pushed_job_is_seen_whole(store: Store, clock: Clock) -> None:
    job = new(payload='{"path": "cat.png", "n": [1, 2.5, null]}', queue="images", priority=2, unique="cat")

    assert store.push([job]) == [job.id]

    view = status(store, job.id)
    assert (view.kind, view.queue, view.priority, view.unique) == ("noop", "images", 2, "cat")
    assert msgspec.json.decode(view.payload) == {"path": "cat.png", "n": [1, 2.5, None]}
    lean = store.status(view.id, payload=False)
    assert lean == msgspec.structs.replace(view, payload=None)
    assert view.state is State.QUEUED
    assert view.due == view.created == clock.now
    assert (view.attempt, view.failures, view.crashes, view.interruptions) == (0, 0, 0, 0)
    assert view.attempts == []
    assert view.finished is None


def test_ids_are_answered_in_canonical_form(store: Store) -> None:
    job = new()
    assert store.push([new(id=job.id.upper())]) == [job.id]
    assert status(store, job.id.upper()).id == job.id


@pytest.mark.parametrize("way", ["queued", "running", "done", "dead", "cancelled"])
def test_pushing_a_known_id_again_adds_nothing(store: Store, way: str) -> None:
    job = new(unique="u")
    store.push([job])
    if way == "cancelled":
        store.cancel(job.id)
    elif way != "queued":
        [claim] = store.claim(want())
        if way != "running":
            store.settle([settlement(claim, State(way))])

    assert store.push([job, job]) == [job.id, job.id]

    assert status(store, job.id).state == way
    assert sum(store.counts().states.values()) == 1


def test_a_taken_unique_key_is_answered_with_none(store: Store) -> None:
    first, second, other_kind = new(unique="u"), new(unique="u"), new(unique="u", kind="other")
    assert store.push([first, second, other_kind]) == [first.id, None, other_kind.id]
    assert store.push([second]) == [None]


@pytest.mark.parametrize("state", [State.DONE, State.DEAD, State.CANCELLED])
def test_a_unique_key_is_free_once_its_job_has_ended(store: Store, state: State) -> None:
    first, second = new(unique="u"), new(unique="u")
    store.push([first])
    [claim] = store.claim(want())
    assert store.push([second]) == [None], "a running job holds its key"
    store.settle([settlement(claim, state)])
    assert store.push([second]) == [second.id]


@pytest.mark.parametrize(
    "given",
    [
        {"id": "no-uuid"},
        {"kind": ""},
        {"kind": "k" * 65},
        {"kind": "é" * 33},
        {"kind": "nul\0"},
        {"kind": "\ud800"},
        {"queue": ""},
        {"queue": "q" * 49},
        {"queue": "@later"},
        {"priority": -1},
        {"priority": 10},
        {"unique": ""},
        {"unique": "u" * 65},
        {"payload": ""},
        {"payload": "{"},
        {"payload": "NaN"},
        {"payload": '"\\u0000"'},
        {"payload": '"\\ud800"'},
        {"due": datetime(1969, 12, 31, tzinfo=UTC)},
        {"due": datetime(9999, 12, 31, tzinfo=UTC)},
        {"due": datetime(2026, 3, 1)},  # noqa: DTZ001 - naive on purpose
    ],
    ids=repr,
)
def test_a_job_that_breaks_a_rule_is_refused_with_all_its_neighbours(store: Store, way: str, given) -> None:
    with pytest.raises(ValueError):
        store.push([new(), new(**given)])
    if "unique" not in given:
        for jobs in ([new(), new(**given)], [new(**given)]):
            with pytest.raises(ValueError):
                store.push_new(jobs)
    assert sum(store.counts().states.values()) == 0


def test_what_looks_like_nul_but_is_not_can_be_stored(store: Store) -> None:
    job = new(
        payload='{"a": "\\\\u0000", "c": "{\\"x\\\\\\\\\\",NULL}"}',
        unique='a"\\,{}',
        queue="NULL",
    )
    assert store.push([job]) == [job.id]
    [claim] = store.claim(want())
    assert msgspec.json.decode(claim.payload) == msgspec.json.decode(job.payload)
    assert (status(store, job.id).unique, claim.queue) == ('a"\\,{}', "NULL")


def test_many_jobs_are_pushed_at_once(store: Store) -> None:
    jobs = [new() for _ in range(2500)]
    assert store.push(jobs) == [job.id for job in jobs]
    assert store.counts().states["queued"] == 2500


def test_many_jobs_are_pushed_all_or_not_at_all(store: Store) -> None:
    with pytest.raises(ValueError):
        store.push([*(new() for _ in range(1500)), new(payload="no json")])
    assert store.counts().states["queued"] == 0


def test_new_jobs_are_pushed_as_any_others(store: Store, clock: Clock, way: str) -> None:
    odd = '{"a": "\\\\u0000\\t\\n \\\\\\"\\\\N"}\n\t'
    later = clock.now + timedelta(days=1)
    jobs = [
        new(payload=odd, queue="\\N", priority=0),
        new(due=later.astimezone(timezone(timedelta(hours=5)))),
        new(delay_s=30.0),
    ]
    for some in [[job] for job in jobs] if way == "one by one" else [jobs]:
        store.push_new(some)
    views = [status(store, job.id) for job in jobs]
    assert [view.due - clock.now for view in views] == [
        timedelta(0),
        timedelta(days=1),
        timedelta(seconds=30),
    ]
    assert {view.created for view in views} == {clock.now}
    assert (views[0].queue, views[0].priority, views[0].kind) == ("\\N", 0, "noop")
    assert msgspec.json.decode(views[0].payload or b"") == msgspec.json.decode(odd)
    store.push_new([])


def test_nothing_pushed_is_nothing(store: Store) -> None:
    assert store.push([]) == []


def test_a_due_time_means_the_same_moment_in_any_zone(store: Store, clock: Clock) -> None:
    zone = timezone(timedelta(hours=5, minutes=30))
    job = new(due=datetime(2026, 3, 1, 18, tzinfo=zone))
    store.push([job])
    assert status(store, job.id).due == datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
    assert status(store, job.id).due.utcoffset() == timedelta(0)


def test_delays_are_cut_to_what_can_be_stored(store: Store) -> None:
    jobs = [new(delay_s=delay_s) for delay_s in (float("nan"), -5.0, float("inf"))]
    store.push(jobs)
    assert claimed_ids(store) == [jobs[0].id, jobs[1].id]


# -- claim


def test_a_claim_carries_the_job_and_a_fresh_lease(store: Store, clock: Clock) -> None:
    job = new(payload='{"a":1}', queue="images", priority=3)
    store.push([job])

    [claim] = store.claim(want())

    assert claim.lease == Lease(job.id, 1)
    assert (claim.kind, claim.queue, claim.priority, claim.due) == ("noop", "images", 3, clock.now)
    assert (claim.attempt, claim.failures, claim.crashes) == (1, 0, 0)
    assert msgspec.json.decode(claim.payload) == {"a": 1}
    [attempt] = status(store, job.id).attempts
    assert (attempt.node, attempt.worker, attempt.pid) == (HOLDER.node, HOLDER.worker, HOLDER.pid)
    assert (attempt.started, attempt.ended, attempt.ending) == (clock.now, None, None)
    assert store.claim(want()) == []


def test_a_job_is_not_claimed_before_it_is_due(store: Store, clock: Clock) -> None:
    soon, later = new(delay_s=5.0), new(due=clock.now + timedelta(seconds=10))
    store.push([later, soon])
    assert store.claim(want()) == []
    clock.move(5)
    assert claimed_ids(store) == [soon.id]
    clock.move(5)
    assert claimed_ids(store) == [later.id]


def test_claims_come_most_urgent_first_then_by_due_and_id(store: Store, clock: Clock) -> None:
    jobs = [
        new(priority=priority, due=clock.now - timedelta(seconds=ago))
        for priority in (5, 0, 9)
        for ago in (1, 2, 1)
    ]
    store.push(jobs)
    expected = sorted(jobs, key=lambda job: (job.priority, job.due, job.id))
    assert claimed_ids(store, limit=4) == [job.id for job in expected[:4]]
    assert claimed_ids(store, limit=9) == [job.id for job in expected[4:]]


def test_queues_of_one_priority_take_turns(store: Store) -> None:
    store.push([new(queue=queue) for queue in ("a", "b", "c") for _ in range(4)])
    firsts = [store.claim(want(limit=2, rewind=turn == 0))[0].queue for turn in range(3)]
    assert sorted(firsts) == ["a", "b", "c"]


def test_other_kinds_and_queues_stay_untouched(store: Store) -> None:
    unknown, elsewhere, mine = new(kind="unknown"), new(queue="else"), new()
    store.push([unknown, elsewhere, mine])
    before = status(store, unknown.id)
    assert claimed_ids(store, queues=("default", "none")) == [mine.id]
    assert status(store, unknown.id) == before
    assert claimed_ids(store, kinds=()) == []
    assert claimed_ids(store, kinds=("unknown",)) == [unknown.id]


def test_a_claim_goes_on_where_the_last_one_stopped_until_it_rewinds(store: Store, clock: Clock) -> None:
    jobs = [new(due=clock.now - timedelta(seconds=10 - number)) for number in range(4)]
    store.push(jobs)
    assert claimed_ids(store, limit=2) == [jobs[0].id, jobs[1].id]
    behind, new_lane = new(due=clock.now - timedelta(seconds=20)), new(priority=0)
    store.push([behind, new_lane])
    assert claimed_ids(store, limit=1, rewind=False) == [jobs[2].id]
    assert claimed_ids(store, rewind=False) == [jobs[3].id]
    assert claimed_ids(store, rewind=False) == []
    assert claimed_ids(store) == [new_lane.id, behind.id]


def test_after_a_look_that_found_nothing_a_claim_goes_on_in_all_lanes_found_lately(store: Store) -> None:
    for queue in ("a", "b"):
        store.push([new(queue=queue)])
        assert len(claimed_ids(store)) == 1
    late_a, late_b = new(queue="a"), new(queue="b")
    store.push([late_a])
    assert claimed_ids(store, rewind=False) == [], "only b had something due when it last looked"
    assert claimed_ids(store) == [late_a.id]
    assert claimed_ids(store) == []
    store.push([late_b])
    assert claimed_ids(store, rewind=False) == [late_b.id]


def test_a_claim_of_nothing_gets_nothing(store: Store) -> None:
    store.push([new()])
    assert store.claim(want(limit=0)) == []
    assert len(store.claim(want(rewind=False))) == 1


# -- settle


def test_a_done_job_keeps_its_result_and_its_attempt(store: Store, clock: Clock) -> None:
    job = new()
    store.push([job])
    [claim] = store.claim(want())
    clock.move(2)

    assert store.settle([settlement(claim, result='{"size": 7}')]) == [True]

    view = status(store, job.id)
    assert (view.state, view.finished) == (State.DONE, clock.now)
    assert msgspec.json.decode(view.result) == {"size": 7}
    [attempt] = view.attempts
    assert (attempt.attempt, attempt.epoch, attempt.ending) == (1, 1, Ending.DONE)
    assert attempt.ended - attempt.started == timedelta(seconds=2)


def test_only_the_current_claim_settles_and_only_once(store: Store, clock: Clock) -> None:
    job = new()
    store.push([job])
    [old] = store.claim(want())
    clock.move(31)
    store.reclaim()
    [current] = store.claim(want(holder=Holder("node-b", 1, 7)))

    assert store.settle([settlement(old, result='"stale"')]) == [False]
    assert status(store, job.id).state is State.RUNNING
    assert store.settle([settlement(current, result='"fresh"'), settlement(current, State.DEAD)]) == [
        True,
        False,
    ]
    assert store.settle([settlement(old, State.QUEUED), settlement(current)]) == [False, False]
    assert bytes(status(store, job.id).result) == b'"fresh"'
    assert [one.ending for one in status(store, job.id).attempts] == [Ending.LEASE_LOST, Ending.DONE]


def test_a_lease_that_ran_out_but_was_not_taken_back_still_settles(store: Store, clock: Clock) -> None:
    store.push([new()])
    [claim] = store.claim(want())
    clock.move(3600)
    assert store.settle([settlement(claim)]) == [True]


@pytest.mark.parametrize(
    ("ending", "budgets"),
    [
        (Ending.RETRY, (1, 0, 0)),
        (Ending.TIMED_OUT, (1, 0, 0)),
        (Ending.STALLED, (1, 0, 0)),
        (Ending.CRASHED, (0, 1, 0)),
        (Ending.RELEASED, (0, 0, 1)),
        (Ending.SNOOZED, (0, 0, 0)),
    ],
)
def test_an_ending_is_charged_to_its_budget(store: Store, ending: Ending, budgets: tuple[int, ...]) -> None:
    job = new()
    store.push([job])
    [claim] = store.claim(want())
    store.settle([settlement(claim, State.QUEUED, ending=ending)])
    view = status(store, job.id)
    assert (view.failures, view.crashes, view.interruptions) == budgets
    [again] = store.claim(want())
    assert (again.lease.epoch, again.attempt, again.failures, again.crashes) == (2, 2, *budgets[:2])


def test_a_retry_comes_after_its_delay_and_leaves_its_reason(store: Store, clock: Clock) -> None:
    job = new()
    store.push([job])
    [claim] = store.claim(want())
    error = Failure("ValueError", "too \0 bad", "Traceback \ud800…")
    certificate = Certificate(
        verdict=Verdict.SIGNAL,
        signal=9,
        exit_code=None,
        cpu_seconds=1.5,
        peak_memory_bytes=1,
        output_tail="\0",
    )
    store.settle([settlement(claim, State.QUEUED, delay_s=4.5, error=error, certificate=certificate)])

    view = status(store, job.id)
    assert (view.state, view.due) == (State.QUEUED, clock.now + timedelta(seconds=4.5))
    [attempt] = view.attempts
    assert attempt.error == Failure("ValueError", "too \\0 bad", "Traceback \\ud800…")
    assert (attempt.certificate.signal, attempt.certificate.output_tail) == (9, "\\0")
    clock.move(4)
    assert store.claim(want()) == []
    clock.move(0.5)
    assert len(store.claim(want())) == 1


def test_lists_have_the_code_and_no_words(store: Store) -> None:
    job = new()
    store.push([job])
    [claim] = store.claim(want())
    certificate = Certificate(
        verdict=Verdict.MEMORY,
        signal=9,
        exit_code=None,
        cpu_seconds=1.5,
        peak_memory_bytes=1,
        output_tail="tail",
        stack="stack",
    )
    died = Settlement(
        lease=claim.lease,
        ending=Ending.CRASHED,
        state=State.DEAD,
        error=Failure("E", "message", "traceback"),
        certificate=certificate,
    )
    store.settle([died])

    [listed] = store.dead()
    [attempt] = listed.attempts
    bare = msgspec.structs.replace(certificate, output_tail="", stack=None)
    assert (attempt.code, attempt.error, attempt.certificate) == (Code.MEMORY, Failure("E"), bare)
    assert [one.code for one in (listed, *store.jobs())] == [Code.MEMORY] * 2
    [attempt] = status(store, job.id).attempts
    assert (attempt.error, attempt.certificate) == (died.error, certificate)


def test_a_job_has_the_code_of_its_last_attempt_until_it_is_done(store: Store) -> None:
    job, other = new(), new(queue="b")
    store.push([job])
    assert status(store, job.id).code is None
    [claim] = store.claim(want())
    store.settle([settlement(claim, State.QUEUED, error=Failure("E"))])
    assert status(store, job.id).code is Code.HANDLER_FAILED
    [claim] = store.claim(want())
    assert status(store, job.id).code is Code.HANDLER_FAILED
    store.settle([settlement(claim, State.DONE)])
    assert status(store, job.id).code is None
    store.push([other])
    store.cancel(other.id)
    assert [one.code for one in store.jobs()] == [Code.CANCELLED, None]


def test_words_go_with_the_attempt_they_belong_to(store: Store) -> None:
    job = new()
    store.push([job])
    for number in range(1, HISTORY_LIMIT + 4):
        [claim] = store.claim(want())
        error = Failure("E", f"attempt {number}") if number % 2 else None
        store.settle([settlement(claim, State.QUEUED, error=error)])
    attempts = status(store, job.id).attempts
    assert [one.attempt for one in attempts] == [1, *range(5, HISTORY_LIMIT + 4)]
    said = [one.error.message if one.error else None for one in attempts]
    assert said == [f"attempt {one.attempt}" if one.attempt % 2 else None for one in attempts]


def test_a_dead_job_is_kept_whole_and_can_be_retried(store: Store, clock: Clock) -> None:
    job = new(payload='{"a": 1}', unique="u", queue="q", priority=1)
    store.push([job])
    [claim] = store.claim(want())
    store.settle([settlement(claim, State.DEAD, error=Failure("E", "why"))])
    dead = status(store, job.id)
    assert (dead.state, dead.failures, dead.finished, dead.unique) == (State.DEAD, 1, clock.now, "u")
    assert [one.error.message for one in dead.attempts] == ["why"]

    clock.move(5)
    assert store.retry(job.id) is True

    view = status(store, job.id)
    assert (view.state, view.attempt, view.failures, view.due) == (State.QUEUED, 0, 0, clock.now)
    assert (view.queue, view.priority, view.unique, view.created) == ("q", 1, "u", dead.created)
    assert [one.ending for one in view.attempts] == [Ending.DEAD]
    assert store.retry(job.id) is False
    [again] = store.claim(want())
    assert (again.attempt, again.lease.epoch) == (1, 2), "the epoch goes on: an old lease stays void"
    assert store.settle([settlement(claim)]) == [False]


def test_a_dead_job_whose_key_is_taken_cannot_be_retried(store: Store) -> None:
    dead, live = new(unique="u"), new(unique="u")
    store.push([dead])
    [claim] = store.claim(want())
    store.settle([settlement(claim, State.DEAD)])
    store.push([live])
    assert store.retry(dead.id) is False
    assert status(store, dead.id).state is State.DEAD
    store.cancel(live.id)
    assert store.retry(dead.id) is True


def test_a_result_that_cannot_be_stored_harms_no_neighbour(store: Store) -> None:
    jobs = [new() for _ in range(5)]
    store.push(jobs)
    results = ["1", '"\\u0000"', '"\\ud800"', "not json", "2"]
    claims = store.claim(want())
    told = [settlement(claim, result=result) for claim, result in zip(claims, results, strict=True)]

    exchanged = store.exchange(told, want(rewind=False))

    assert exchanged.kept == (True,) * 5
    states = [status(store, job.id).state for job in jobs]
    assert states == [State.DONE, State.DEAD, State.DEAD, State.DEAD, State.DONE]
    assert status(store, jobs[1].id).attempts[-1].error == REFUSED


@pytest.mark.parametrize(
    ("state", "ending"),
    [(State.RUNNING, Ending.DONE), (State.DONE, Ending.RETRY), (State.DEAD, Ending.DONE)],
)
def test_an_outcome_that_is_none_is_a_bug_of_the_caller(store: Store, state: State, ending: Ending) -> None:
    with pytest.raises(ValueError, match="no outcome"):
        store.settle([Settlement(lease=Lease(new_id(), 1), state=state, ending=ending)])


def test_exchange_settles_and_claims_what_it_has_put_back(store: Store, clock: Clock) -> None:
    jobs = [new(), new()]
    store.push(jobs)
    first = store.claim(want(limit=1))
    clock.move(1)
    exchanged = store.exchange([settlement(first[0], State.QUEUED)], want(limit=5))
    assert exchanged.kept == (True,)
    assert sorted(claim.lease.id for claim in exchanged.claims) == sorted(job.id for job in jobs)
    again = store.exchange([settlement(claim, State.QUEUED) for claim in exchanged.claims], want())
    assert len(again.claims) == 2
    assert store.exchange([], None).claims == ()


def test_the_history_keeps_the_first_and_the_latest_attempts(store: Store) -> None:
    job = new()
    store.push([job])
    for _ in range(HISTORY_LIMIT + 5):
        [claim] = store.claim(want())
        store.settle([settlement(claim, State.QUEUED)])
    numbers = [one.attempt for one in status(store, job.id).attempts]
    assert numbers == [1, *range(7, HISTORY_LIMIT + 6)]


def test_finish_ends_a_claim_the_plain_way(store: Store, clock: Clock) -> None:
    job = new()
    store.push([job])
    for delay_s in (1, 2):
        [claim] = store.claim(want())
        assert store.finish(claim, "boom") is True
        assert store.finish(claim, "boom") is False
        assert status(store, job.id).due == clock.now + timedelta(seconds=delay_s)
        clock.move(delay_s)
    [claim] = store.claim(want())
    store.finish(claim, "boom")
    assert (status(store, job.id).state, status(store, job.id).failures) == (State.DEAD, 3)

    store.push([new()])
    [claim] = store.claim(want())
    assert store.finish(claim) is True
    assert status(store, claim.lease.id).state is State.DONE


# -- cancel


def test_a_queued_job_is_cancelled_at_once(store: Store, clock: Clock) -> None:
    job = new(unique="u")
    store.push([job])
    assert store.cancel(job.id) is State.CANCELLED
    assert (status(store, job.id).state, status(store, job.id).finished) == (State.CANCELLED, clock.now)
    assert status(store, job.id).attempts == []
    assert store.cancel(job.id) is None
    assert store.claim(want()) == []


@pytest.mark.parametrize("id", ["nonsense", "", "01a22d0d-75d9-7000-8c22-782ef161a0bc"])
def test_an_unknown_job_is_nothing(store: Store, id: str) -> None:
    assert store.cancel(id) is None
    assert store.retry(id) is False
    assert store.status(id) is None


def test_a_running_job_is_asked_and_ends_cancelled_where_it_would_be_queued(store: Store) -> None:
    jobs = [new() for _ in range(4)]
    store.push(jobs)
    claims = store.claim(want())
    for job in jobs:
        assert store.cancel(job.id) is State.RUNNING
        assert store.cancel(job.id) is State.RUNNING
    assert store.cancels(HOLDER.node) == sorted(claim.lease for claim in claims)
    assert store.cancels("node-b") == []
    renewed = store.renew([claim.lease for claim in claims], 30)
    assert renewed.held == renewed.cancelled == {claim.lease for claim in claims}

    store.settle(
        [
            settlement(claims[0], State.QUEUED, ending=Ending.CRASHED, delay_s=9),
            settlement(claims[1]),
            settlement(claims[2], State.DEAD),
        ]
    )
    store.give_back([claims[3].lease])

    states = [status(store, job.id).state for job in jobs]
    assert states == [State.CANCELLED, State.DONE, State.DEAD, State.CANCELLED]
    assert status(store, jobs[0].id).crashes == 1
    assert [one.ending for one in status(store, jobs[0].id).attempts] == [Ending.CRASHED]
    assert (status(store, jobs[3].id).attempt, status(store, jobs[3].id).attempts) == (0, [])


# -- leases


def test_renewing_moves_the_end_of_current_leases_only(store: Store, clock: Clock) -> None:
    store.push([new(), new()])
    claims = store.claim(want(lease_s=10))
    clock.move(9)
    stale = Lease(claims[1].lease.id, 7)
    renewed = store.renew([claims[0].lease, stale], 10)
    assert (renewed.held, renewed.cancelled) == ({claims[0].lease}, frozenset())
    clock.move(1)
    assert store.reclaim() == [claims[1].lease]
    clock.move(9)
    assert store.reclaim() == [claims[0].lease]
    assert store.renew([], 10).held == frozenset()


def test_a_reclaimed_job_has_its_old_place_and_was_an_interruption(store: Store, clock: Clock) -> None:
    job = new()
    store.push([job])
    store.claim(want(lease_s=5))
    clock.move(7)
    store.reclaim()
    view = status(store, job.id)
    assert (view.state, view.due, view.attempt) == (State.QUEUED, clock.now - timedelta(seconds=7), 1)
    assert (view.failures, view.crashes, view.interruptions) == (0, 0, 1)
    [attempt] = view.attempts
    assert (attempt.ending, attempt.ended, attempt.node) == (Ending.LEASE_LOST, clock.now, HOLDER.node)


def test_reclaiming_takes_the_longest_lost_first_up_to_its_limit(store: Store, clock: Clock) -> None:
    store.push([new() for _ in range(3)])
    [last] = store.claim(want(limit=1, lease_s=9))
    [middle] = store.claim(want(limit=1, lease_s=5))
    [first] = store.claim(want(limit=1, lease_s=1))
    clock.move(60)
    assert store.reclaim(2) == [first.lease, middle.lease]
    assert store.reclaim() == [last.lease]
    assert store.reclaim() == []


def test_a_reclaimed_job_whose_cancel_was_asked_is_cancelled(store: Store, clock: Clock) -> None:
    job = new()
    store.push([job])
    store.claim(want(lease_s=5))
    store.cancel(job.id)
    clock.move(5)
    store.reclaim()
    assert status(store, job.id).state is State.CANCELLED


def test_a_claim_given_back_was_never_started(store: Store, clock: Clock) -> None:
    job, other = new(), new()
    store.push([job, other])
    claims = store.claim(want())
    clock.move(3)
    stale = Lease(other.id, 9)
    assert store.give_back([claims[0].lease, stale]) == 1
    view = status(store, job.id)
    assert (view.state, view.attempt, view.interruptions, view.attempts) == (State.QUEUED, 0, 0, [])
    assert view.due == claims[0].due, "it keeps its place"
    [again] = store.claim(want())
    assert (again.lease.epoch, again.attempt) == (2, 1)
    assert store.settle([settlement(claims[0])]) == [False]
    assert store.give_back([]) == 0


def test_abandoning_gives_back_just_what_that_worker_held(store: Store) -> None:
    store.push([new() for _ in range(3)])
    store.claim(want(limit=2))
    [other] = store.claim(want(limit=1, holder=Holder(HOLDER.node, 1, 102)))
    assert store.abandon(HOLDER) == 2
    assert store.abandon(HOLDER) == 0
    assert store.settle([settlement(other)]) == [True]
    assert len(store.claim(want())) == 2


# -- progress


def test_progress_is_seen_and_belongs_to_its_attempt(store: Store) -> None:
    job = new()
    store.push([job])
    [claim] = store.claim(want())
    store.progress([(claim.lease, Progress(1, 4)), (claim.lease, Progress(2, 4, "half \0"))])
    assert status(store, job.id).progress == Progress(2, 4, "half \\0")
    store.progress([(claim.lease, Progress(float("nan")))])
    assert status(store, job.id).progress == Progress(2, 4, "half \\0"), (
        "what cannot be stored changes nothing"
    )
    store.settle([settlement(claim, State.QUEUED)])
    [again] = store.claim(want())
    assert status(store, job.id).progress is None
    store.progress([(claim.lease, Progress(3, 4))])
    assert status(store, job.id).progress is None
    store.progress([(again.lease, Progress(0.5))])
    store.settle([settlement(again)])
    before = status(store, job.id)
    store.progress([(again.lease, Progress(9))])
    assert status(store, job.id) == before, "late progress changes nothing"
    store.progress([])


# -- lists and counts


def test_jobs_are_listed_newest_first_and_filtered(store: Store) -> None:
    jobs = [new(kind=kind, queue=queue) for kind in ("a", "b") for queue in ("x", "y")]
    store.push(jobs)
    [done] = store.claim(want(kinds=("a",), queues=("x",)))
    [dead] = store.claim(want(kinds=("b",), queues=("y",)))
    store.settle([settlement(done), settlement(dead, State.DEAD)])
    ids = [job.id for job in jobs]

    assert [view.id for view in store.jobs()] == ids[::-1]
    assert [view.id for view in store.jobs(limit=2)] == ids[:1:-1]
    assert [view.id for view in store.jobs(kind="a")] == [ids[1], ids[0]]
    assert [view.id for view in store.jobs(queue="x")] == [ids[2], ids[0]]
    for state, expected in ((State.DONE, [ids[0]]), (State.DEAD, [ids[3]]), (State.RUNNING, [])):
        assert [view.id for view in store.jobs(state)] == expected
    assert [view.id for view in store.jobs(State.QUEUED, kind="b", queue="x")] == [ids[2]]
    assert all((view.payload, view.result, view.attempts) == (None, None, []) for view in store.jobs())


def test_the_latest_death_is_listed_first(store: Store, clock: Clock) -> None:
    jobs = [new(), new(), new(kind="other")]
    store.push(jobs)
    for claim in store.claim(want(kinds=("noop", "other")))[::-1]:
        clock.move(1)
        store.settle([settlement(claim, State.DEAD)])
    assert [view.id for view in store.dead()] == [job.id for job in jobs]
    assert [view.id for view in store.dead(kind="noop", limit=1)] == [jobs[0].id]
    assert all(view.payload is None for view in store.dead())


def test_counts_tell_states_and_queues(store: Store, clock: Clock) -> None:
    store.push([new(queue="b"), new(queue="b"), new(queue="a", delay_s=60), new(queue="b", kind="other")])
    [claim] = store.claim(want(limit=1))
    store.kick([Kick(kind="noop", queue="b")] * 3 + [Kick(kind="noop", queue="c")])
    counts = store.counts()
    assert counts.states == {"queued": 3, "running": 1, "done": 0, "dead": 0, "cancelled": 0}
    assert counts.queues == [
        QueueCount(queue="a", kind="noop", queued=1, running=0, oldest_due=None),
        QueueCount(queue="b", kind="noop", queued=1, running=1, oldest_due=clock.now, kicked=3),
        QueueCount(queue="b", kind="other", queued=1, running=0, oldest_due=clock.now),
        QueueCount(queue="c", kind="noop", queued=0, running=0, oldest_due=None, kicked=1),
    ]
    store.settle([settlement(claim)])
    assert store.counts().states["done"] == 1


def test_pending_asks_for_live_jobs_of_known_kinds(store: Store) -> None:
    assert not store.pending(["noop"], ["*"])
    store.push([new(delay_s=3600)])
    assert store.pending(["noop"], ["*"])
    assert store.pending(["noop"], ["default"])
    assert not store.pending(["other"], ["*"])
    assert not store.pending(["noop"], ["other"])
    assert not store.pending([], ["*"])


def test_the_outlook_tells_what_to_wake_up_for(store: Store, clock: Clock) -> None:
    outlook = store.outlook(["*"])
    assert (outlook.due_now, outlook.next_due_s, outlook.lease_end_s) == (False, None, None)
    assert outlook.next_tick_s is None
    store.push([new(delay_s=40), new(delay_s=20, queue="other", priority=9), new(queue="other")])
    outlook = store.outlook(["*"])
    assert (outlook.due_now, outlook.next_due_s, outlook.lease_end_s) == (True, 20, None)
    outlook = store.outlook(["default"])
    assert (outlook.due_now, outlook.next_due_s) == (False, 40)
    store.claim(want(lease_s=10))
    assert store.outlook(["*"]).lease_end_s == 10
    clock.move(12)
    outlook = store.outlook(["*"])
    assert (outlook.due_now, outlook.next_due_s, outlook.lease_end_s) == (False, 8, -2)


# -- schedules


SPEC = '{"type": "every", "every_s": 60.0}'


def new_schedule(name: str = "s", **given: Any) -> NewSchedule:
    return NewSchedule(**({"name": name, "kind": "noop", "spec": SPEC} | given))


def test_of_two_who_see_a_tick_due_one_moves_it_and_pushes_its_job(store: Store, clock: Clock) -> None:
    start = clock.now
    due = start + timedelta(seconds=10)
    assert store.schedule(new_schedule(payload='{"a": 1}', due=due)) is True
    assert store.overdue() == []
    assert store.outlook(["*"]).next_tick_s == 10
    clock.move(13)
    assert store.outlook(["none"]).next_tick_s == -3
    [one] = store.overdue()
    assert (one.due, one.live, one.paused, msgspec.json.decode(one.payload)) == (due, False, False, {"a": 1})
    following = due + timedelta(seconds=60)
    first, second = new(due=due, unique="schedule:s"), new(due=due)

    assert store.advance("s", due, following, first) is True
    assert store.advance("s", due, following, second) is False

    assert status(store, first.id).due == due
    assert store.status(second.id) is None
    [one] = store.schedules()
    assert (one.due, one.last, one.live) == (following, due, True)
    assert store.overdue() == []


def test_a_tick_may_pass_without_a_job(store: Store, clock: Clock) -> None:
    store.schedule(new_schedule())
    [one] = store.overdue()
    assert store.advance("s", one.due, one.due + timedelta(seconds=60), None)
    [one] = store.schedules()
    assert (one.last, one.live, one.due) == (None, False, clock.now + timedelta(seconds=60))


def test_a_paused_schedule_is_never_due(store: Store, clock: Clock) -> None:
    store.schedule(new_schedule())
    [due] = [one.due for one in store.overdue()]
    assert store.pause("s")
    assert store.overdue() == []
    assert not store.advance("s", due, due + timedelta(seconds=60), None)
    assert store.outlook(["*"]).next_tick_s is None
    store.schedule(new_schedule(kind="other"))
    assert store.schedules()[0].paused, "called again it keeps the state"
    assert store.pause("s", False)
    assert [one.name for one in store.overdue()] == ["s"]
    assert not store.pause("unknown")


def test_calling_schedule_again_changes_what_is_given_and_keeps_the_due_time(
    store: Store, clock: Clock
) -> None:
    later = clock.now + timedelta(days=1)
    assert store.schedule(new_schedule(kind="a", payload="1", due=later))
    sooner = clock.now + timedelta(hours=1)
    assert not store.schedule(
        new_schedule(kind="b", payload="2", due=sooner, queue="q", priority=1, missed="drop", overlap="queue")
    )
    [one] = store.schedules()
    assert (one.kind, bytes(one.payload), one.queue, one.priority, one.missed, one.overlap) == (
        "b", b"2", "q", 1, "drop", "queue",
    )  # fmt: skip
    assert one.due == later
    store.schedule(new_schedule(spec='{"type": "every", "every_s": 30.0}', due=sooner))
    assert store.schedules()[0].due == sooner, "another rule whose first tick comes sooner"
    store.schedule(new_schedule(spec=SPEC, due=later))
    assert store.schedules()[0].due == sooner
    assert store.unschedule("s") is True
    assert store.unschedule("s") is False
    assert store.schedules() == []


@pytest.mark.parametrize(
    "given",
    [
        {"spec": "{"},
        {"name": ""},
        {"name": "n" * 56},
        {"kind": ""},
        {"payload": "{"},
        {"queue": "@q"},
        {"priority": 10},
        {"due": datetime(2026, 3, 1)},  # noqa: DTZ001 - naive on purpose
    ],
    ids=repr,
)
def test_a_schedule_that_breaks_a_rule_is_refused(store: Store, given) -> None:
    with pytest.raises(ValueError):
        store.schedule(new_schedule(**given))
    assert store.schedules() == []


def test_a_tick_that_was_pushed_once_is_never_pushed_again(store: Store, clock: Clock) -> None:
    due = clock.now
    job = new(due=due)
    for _ in range(2):
        store.schedule(new_schedule(due=due))
        assert store.advance("s", due, due + timedelta(seconds=60), job)
        for claim in store.claim(want()):
            store.finish(claim)
        store.unschedule("s")
    assert status(store, job.id).attempt == 1
    assert store.claim(want()) == []


# -- nodes and upkeep


def test_a_node_is_seen_until_it_is_forgotten_or_silent(store: Store, clock: Clock) -> None:
    node = NodeView(
        id="node-a",
        host="h",
        pid=1,
        version="1",
        state="running",
        workers=[WorkerView(name="worker 1", pid=2, state="idle")],
    )
    started = clock.now
    store.report(node)
    clock.move(5)
    store.report(node)
    store.report(NodeView(id="node-b", host="h", pid=1, version="1", state="running"))
    [a, b] = store.nodes()
    assert (a.id, a.started, a.seen, a.workers) == ("node-a", started, clock.now, node.workers)
    assert (b.started, b.seen) == (clock.now, clock.now)
    store.forget("node-b")
    store.forget("node-b")
    assert [one.id for one in store.nodes()] == ["node-a"]
    clock.move(60)
    store.prune(1e6, 59)
    assert store.nodes() == []


def test_pruning_drops_whole_days_of_ended_jobs_and_never_dead_ones(store: Store, clock: Clock) -> None:
    jobs = [new() for _ in range(4)]
    store.push(jobs)
    claims = store.claim(want(limit=3))
    store.settle(
        [settlement(claims[0]), settlement(claims[1], State.CANCELLED), settlement(claims[2], State.DEAD)]
    )
    store.prune(86_400, 1e6)
    clock.move(86_400)
    store.prune(86_400, 1e6)
    assert status(store, jobs[0].id).state is State.DONE, "its day is not wholly over for so long"
    clock.move(43_200)
    store.prune(86_400, 1e6)
    assert [store.status(job.id) is None for job in jobs] == [True, True, False, False]


def test_a_job_that_goes_back_without_a_delay_keeps_its_place_in_its_lane(store: Store, clock: Clock) -> None:
    first, second = new(), new()
    store.push([first])
    clock.move(1)
    store.push([second])
    [claim] = store.claim(want(limit=1))
    clock.move(60)
    store.settle([settlement(claim, State.QUEUED, ending=Ending.CRASHED)])
    assert status(store, first.id).due == clock.now - timedelta(seconds=61)
    assert [one.lease.id for one in store.claim(want(limit=2))] == [first.id, second.id]


# -- a taken unique key, and what people do to queued, ended and dead jobs


def test_a_push_can_ask_who_has_its_unique_key(store: Store) -> None:
    first, second = new(unique="u"), new(unique="u")
    assert store.push_unique(first) == first.id
    assert store.push_unique(second) == first.id
    [claim] = store.claim(want())
    assert store.push_unique(second) == first.id, "a running one has it, too"
    assert store.push_unique(new(unique="u", kind="other")) != first.id

    store.settle([settlement(claim)])
    assert store.push_unique(first) == first.id, "a known id is answered with itself"
    assert store.push_unique(second) == second.id


def test_a_replaced_job_is_the_newer_one_in_all_but_its_id(store: Store, clock: Clock) -> None:
    first = new(unique="u", delay_s=600.0)
    store.push([first])
    second = new(unique="u", queue="fast", priority=0, payload='{"n": 2}', due=clock.now + timedelta(hours=1))

    assert store.push_unique(second, replace=True) == first.id

    view = status(store, first.id)
    assert (view.queue, view.priority, view.due) == ("fast", 0, second.due)
    assert msgspec.json.decode(view.payload) == {"n": 2}
    assert store.status(second.id) is None
    assert store.push_unique(new(unique="u", delay_s=5.0), replace=True) == first.id
    assert status(store, first.id).due == clock.now + timedelta(seconds=5)


def test_a_running_job_is_not_replaced(store: Store) -> None:
    first = new(unique="u")
    store.push([first])
    store.claim(want())
    before = status(store, first.id)

    assert store.push_unique(new(unique="u", payload='{"n": 2}'), replace=True) is None

    assert status(store, first.id) == before


def test_a_replacement_keeps_the_rules_of_the_table(store: Store) -> None:
    store.push([new(unique="u")])
    for given in ({"queue": "@x"}, {"payload": '"\\u0000"'}, {"due": datetime(2026, 1, 1)}):  # noqa: DTZ001
        with pytest.raises(ValueError):
            store.push_unique(new(unique="u", **given), replace=True)


def test_a_job_is_due_when_it_is_rescheduled_to(store: Store, clock: Clock) -> None:
    job = new()
    store.push([job])
    assert store.reschedule(job.id, delay_s=60.0)
    assert claimed_ids(store) == []
    assert store.reschedule(job.id, clock.now - timedelta(seconds=1))
    assert claimed_ids(store) == [job.id]


@pytest.mark.parametrize("due", [datetime(2026, 1, 1), datetime(1960, 1, 1, tzinfo=UTC)])  # noqa: DTZ001
def test_a_job_is_not_rescheduled_to_what_is_no_time(store: Store, due: datetime) -> None:
    job = new()
    store.push([job])
    before = status(store, job.id)
    with pytest.raises(ValueError):
        store.reschedule(job.id, due)
    assert status(store, job.id) == before


def die(store: Store, *jobs: Any) -> None:
    """Let queued jobs of any kind die."""
    for _ in jobs:
        [claim] = store.claim(want(limit=1, kinds=("noop", "other")))
        store.settle([settlement(claim, State.DEAD)])


def test_all_dead_jobs_of_a_kind_are_queued_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.edges.postgres.RETRY_ROWS", 2)
    jobs = [new() for _ in range(5)]
    other = new(kind="other")
    store.push([*jobs, other])
    die(store, *jobs, other)

    assert store.retry_all("noop") == 5

    assert [(one.state, one.attempt) for one in store.jobs(kind="noop")] == [(State.QUEUED, 0)] * 5
    assert status(store, other.id).state is State.DEAD
    assert store.retry_all("noop") == 0


def test_dead_jobs_whose_keys_are_taken_stay_dead_and_do_not_stop_the_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.edges.postgres.RETRY_ROWS", 2)
    taken = [new(unique="u") for _ in range(3)]
    for job in taken:
        store.push([job])
        die(store, job)
    free = new()
    store.push([free])
    die(store, free)

    assert store.retry_all("noop") == 2

    assert [status(store, job.id).state for job in taken] == [State.QUEUED, State.DEAD, State.DEAD]
    assert status(store, free.id).state is State.QUEUED


def test_waiting_shows_what_is_first_in_each_lane(store: Store, clock: Clock) -> None:
    lane = [new(kind=kind, due=clock.now - timedelta(seconds=9 - at)) for at, kind in enumerate("aab")]
    store.push([*lane, new(kind="a", queue="q"), new(kind="later", delay_s=60.0)])

    assert store.waiting() == [
        QueueCount(
            queue="default", kind="a", queued=2, running=0, oldest_due=clock.now - timedelta(seconds=9)
        ),
        QueueCount(
            queue="default", kind="b", queued=1, running=0, oldest_due=clock.now - timedelta(seconds=7)
        ),
        QueueCount(queue="q", kind="a", queued=1, running=0, oldest_due=clock.now),
    ]
    assert [(one.queue, one.kind, one.queued) for one in store.waiting(1)] == [
        ("default", "a", 1),
        ("q", "a", 1),
    ]
