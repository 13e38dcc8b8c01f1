"""Kicks, tried on each kind of store: one run that began after each of them, and never two at once."""

from __future__ import annotations

import msgspec
import pytest

from runtime.edges.store import Store
from runtime.model.jobs import Ending, JobView, Kick, Lease, NewSchedule, State
from tests.edges.conftest import Clock
from tests.helpers.jobs import new, settlement, want

NOOP = Kick(kind="noop")


def queued(store: Store) -> list[JobView]:
    return store.jobs(State.QUEUED)


def test_a_kick_makes_one_run_of_its_kind(store: Store, clock: Clock) -> None:
    store.kick([Kick(kind="tidy", payload='{"n": 1}', queue="images", priority=2)])
    assert queued(store) == [], "not before it is started"

    assert store.start_kicked() == 1

    [run] = queued(store)
    assert (run.kind, run.queue, run.priority, run.unique) == ("tidy", "images", 2, "schedule:tidy")
    assert run.due == run.created == clock.now
    view = store.status(run.id)
    assert view is not None
    assert msgspec.json.decode(view.payload or b"") == {"n": 1}
    assert store.start_kicked() == 0
    assert queued(store) == [run]


def test_kicks_become_one_run_made_by_the_latest(store: Store) -> None:
    store.kick([NOOP] * 3 + [Kick(kind="other")] * 2)
    store.kick([Kick(kind="noop", queue="new")])
    assert store.start_kicked() == 6
    assert sorted((run.kind, run.queue) for run in queued(store)) == [("noop", "new"), ("other", "default")]
    store.kick([NOOP])
    assert store.start_kicked() == 1
    assert len(queued(store)) == 2, "a run that is queued begins after it"


def test_a_kick_waits_for_the_end_of_a_run_that_began_before_it(store: Store) -> None:
    store.kick([NOOP])
    store.start_kicked()
    [first] = store.claim(want())

    store.kick([NOOP] * 5)
    assert store.start_kicked() == 4, "one stands for all"
    assert (store.start_kicked(), queued(store)) == (0, [])
    assert store.outlook(["*"]).kicked
    store.settle([settlement(first)])
    assert store.start_kicked() == 1
    [second] = store.claim(want())
    assert second.lease.id != first.lease.id
    assert not store.outlook(["*"]).kicked
    assert store.start_kicked() == 0


@pytest.mark.parametrize("state", [State.DEAD, State.CANCELLED])
def test_a_kick_follows_a_run_however_that_has_ended(store: Store, state: State) -> None:
    store.kick([NOOP])
    store.start_kicked()
    [claim] = store.claim(want())
    store.kick([NOOP])
    store.settle([settlement(claim, state)])
    assert store.start_kicked() == 1
    assert len(store.claim(want())) == 1


def test_a_run_that_waits_for_its_retry_is_brought_forward(store: Store, clock: Clock) -> None:
    store.kick([NOOP])
    store.start_kicked()
    [claim] = store.claim(want())
    store.settle([settlement(claim, State.QUEUED, delay_s=3600)])

    store.kick([NOOP])
    assert store.start_kicked() == 1

    assert [(run.id, run.due) for run in queued(store)] == [(claim.lease.id, clock.now)]


def test_a_run_that_is_due_keeps_its_place(store: Store, clock: Clock) -> None:
    store.kick([NOOP])
    store.start_kicked()
    due = clock.now
    clock.move(10)
    store.kick([NOOP])
    store.start_kicked()
    assert [run.due for run in queued(store)] == [due]


def test_a_run_of_the_schedule_and_a_kicked_one_are_never_on_at_once(store: Store, clock: Clock) -> None:
    store.schedule(NewSchedule(name="noop", kind="noop", spec='{"every_s": 1}'))
    tick = new(unique="schedule:noop")
    assert store.advance("noop", clock.now, clock.now, tick)
    store.kick([NOOP])
    store.start_kicked()
    [claim] = store.claim(want())
    assert claim.lease.id == tick.id, "the tick's run is the one that was kicked"

    store.kick([NOOP])
    store.start_kicked()
    assert queued(store) == []
    store.settle([settlement(claim)])
    store.start_kicked()
    assert store.schedules()[0].live, "so that a tick is skipped"
    assert store.push([new(unique="schedule:noop")]) == [None]


def test_an_attempt_that_is_done_kicks_as_it_is_settled(store: Store) -> None:
    store.push([new(), new(), new()])
    done, plain, lost = store.claim(want())
    kicks = (NOOP, Kick(kind="other"))

    kept = store.settle(
        [
            settlement(Lease(lost.lease.id, lost.lease.epoch + 1), kicks=(Kick(kind="never"),)),
            settlement(done, kicks=kicks),
            settlement(plain),
        ]
    )

    assert kept == [False, True, True]
    assert store.settle([settlement(done, kicks=kicks)]) == [False]
    assert store.start_kicked() == 2
    assert sorted(run.kind for run in queued(store)) == ["noop", "other"]


def test_an_exchange_kicks_too(store: Store) -> None:
    store.push([new(), new()])
    first, second = store.claim(want(limit=2))
    for rewind in (True, False):
        told = settlement(first if rewind else second, kicks=(NOOP,))
        store.exchange([told], want(rewind=rewind))
    assert store.start_kicked() == 2


@pytest.mark.parametrize("state", [State.QUEUED, State.DEAD, State.CANCELLED])
def test_an_attempt_that_is_not_done_kicks_nothing(store: Store, state: State) -> None:
    store.push([new()])
    [claim] = store.claim(want())
    with pytest.raises(ValueError, match="kicks nothing"):
        store.settle([settlement(claim, state, kicks=(NOOP,))])


def test_an_attempt_whose_result_is_refused_kicks_nothing(store: Store) -> None:
    store.push([new()])
    [claim] = store.claim(want())
    told = settlement(claim, ending=Ending.DONE, result='"\\u0000"', kicks=(NOOP,))
    assert store.settle([told]) == [True]
    assert (store.counts().states["dead"], store.start_kicked()) == (1, 0)


def test_kicks_are_taken_out_in_bounded_steps(store: Store) -> None:
    store.kick([NOOP] * 10)
    assert [store.start_kicked(limit=4) for _ in range(4)] == [4, 4, 2, 0]
    [claim] = store.claim(want())
    store.kick([NOOP] * 10)
    assert [store.start_kicked(limit=4) for _ in range(4)] == [3, 3, 3, 0]
    store.settle([settlement(claim)])
    assert store.start_kicked(limit=4) == 1


def test_a_kick_is_something_left_to_do(store: Store) -> None:
    store.kick([Kick(kind="noop", queue="q")])
    assert store.pending(["noop"], ["*"])
    assert store.pending(["noop"], ["q"])
    assert not store.pending(["noop"], ["other"])
    assert not store.pending(["other"], ["*"])


@pytest.mark.parametrize(
    "given",
    [{"kind": ""}, {"kind": "k" * 56}, {"queue": "@q"}, {"priority": 10}, {"payload": "{"}],
    ids=repr,
)
def test_a_kick_that_breaks_a_rule_is_refused_with_all_its_neighbours(store: Store, given: dict) -> None:
    with pytest.raises(ValueError):
        store.kick([NOOP, Kick(**{"kind": "noop", **given})])
    assert store.start_kicked() == 0
