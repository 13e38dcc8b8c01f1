"""Every act in every state: it moves the job as MOVES says, or changes nothing and answers "no"."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runtime.edges.store import Store
from runtime.model.jobs import MOVES, Lease, State
from tests.edges.conftest import Clock
from tests.helpers.jobs import HOLDER, new, settlement, want

LEASE_S = 30.0

ACTS: dict[str, Callable[[Store, Clock, Lease], object]] = {
    "claim": lambda store, clock, lease: store.claim(want(lease_s=LEASE_S)),
    "cancel": lambda store, clock, lease: store.cancel(lease.id),
    "reschedule": lambda store, clock, lease: store.reschedule(lease.id, delay_s=60.0),
    "renew": lambda store, clock, lease: store.renew([lease], LEASE_S).held,
    "settle done": lambda store, clock, lease: store.settle([settlement(lease, State.DONE)])[0],
    "settle queued": lambda store, clock, lease: store.settle([settlement(lease, State.QUEUED)])[0],
    "settle dead": lambda store, clock, lease: store.settle([settlement(lease, State.DEAD)])[0],
    "settle cancelled": lambda store, clock, lease: store.settle([settlement(lease, State.CANCELLED)])[0],
    "return": lambda store, clock, lease: store.give_back([lease]),
    "abandon": lambda store, clock, lease: store.abandon(HOLDER),
    "expire": lambda store, clock, lease: (clock.move(LEASE_S), store.reclaim())[1],
    "retry": lambda store, clock, lease: store.retry(lease.id),
}
WAYS = {  # how a new job gets into each state
    State.QUEUED: [],
    State.RUNNING: ["claim"],
    State.DONE: ["claim", "settle done"],
    State.DEAD: ["claim", "settle dead"],
    State.CANCELLED: ["cancel"],
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("state", WAYS)
def test_an_act_in_a_state(store: Store, clock: Clock, state: State, act: str) -> None:
    lease = Lease(new().id, 1)
    store.push([new(id=lease.id)])
    for step in WAYS[state]:
        ACTS[step](store, clock, lease)
    before = store.status(lease.id)
    assert before is not None
    assert before.state is state

    answer = ACTS[act](store, clock, lease)

    after = store.status(lease.id)
    assert after is not None
    if (state, act) in MOVES:
        assert after.state is MOVES[state, act]
        assert answer
    else:
        assert after == before
        assert not answer


BY_LEASE = [
    act for state, act in MOVES if state is State.RUNNING and act not in {"cancel", "abandon", "expire"}
]


@pytest.mark.parametrize("act", BY_LEASE)
def test_no_act_of_an_old_lease_moves_a_running_job(store: Store, clock: Clock, act: str) -> None:
    job = new()
    store.push([job])
    store.claim(want())
    store.give_back([Lease(job.id, 1)])
    store.claim(want())
    before = store.status(job.id)

    for epoch in (0, 1, 3):
        assert not ACTS[act](store, clock, Lease(job.id, epoch))

    assert store.status(job.id) == before


@pytest.mark.parametrize("state", WAYS)
def test_a_job_is_deleted_in_every_state_but_running(store: Store, clock: Clock, state: State) -> None:
    lease = Lease(new().id, 1)
    store.push([new(id=lease.id, unique="u")])
    for step in WAYS[state]:
        ACTS[step](store, clock, lease)
    before = store.status(lease.id)

    assert store.delete(lease.id) is (state is not State.RUNNING)

    if state is State.RUNNING:
        assert store.status(lease.id) == before
        assert store.settle([settlement(lease, State.DONE)]) == [True], "its worker notices nothing"
    else:
        assert store.status(lease.id) is None
        assert not store.delete(lease.id)
        assert store.push([new(id=lease.id, unique="u")]) == [lease.id]


def test_the_table_names_real_acts_and_states() -> None:
    assert {act for _, act in MOVES} == set(ACTS)
    assert {state for state, _ in MOVES} | set(MOVES.values()) == set(WAYS) == set(State)
