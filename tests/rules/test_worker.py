"""A worker's next step: claim, run, settle, wait, leave; and what it does when the database is away."""

from __future__ import annotations

from datetime import UTC, datetime

from runtime.model.exits import EXIT_OK, EXIT_RECYCLED
from runtime.model.jobs import Claim, Ending, Lease, Settlement, State
from runtime.model.messages import Claimed, Stop, Wake
from runtime.rules import worker
from runtime.rules.batch import FIRST, LIMIT_MAX, Pace
from runtime.rules.worker import Exchange, Got, Leave, Lost, Ran, Revoked, Run, Told, TooLate, Wait, Waited

LEASE_S = 30.0


def claim(number: int) -> Claim:
    return Claim(
        lease=Lease(f"job-{number}", 1), kind="nap", queue="default", priority=5,
        due=datetime(2030, 1, 1, tzinfo=UTC), attempt=1, failures=0, crashes=0, payload="{}",
    )  # fmt: skip


def ran(of: Run, *, safe: bool = True, took_s: float = 0.001) -> Ran:
    return Ran(Settlement(lease=of.claim.lease, ending=Ending.DONE, state=State.DONE), took_s, safe)


class Driven:
    """A worker machine with its clock."""

    def __init__(self, **changes: object) -> None:
        self.now_s = 100.0
        self.state = worker.State(lease_s=LEASE_S, pace=Pace(limit=10), **changes)  # type: ignore[arg-type]
        self.said: list[Claimed] = []

    def __call__(self, event: worker.Event) -> worker.Action:
        said, action = worker.step(self.state, event, self.now_s)
        self.said += said
        return action

    def run(self, event: worker.Event) -> Run:
        action = self(event)
        assert isinstance(action, Run)
        return action

    def exchange(self, event: worker.Event) -> Exchange:
        action = self(event)
        assert isinstance(action, Exchange)
        return action

    def got(self, *numbers: int) -> Got:
        return Got(tuple(map(claim, numbers)), sent_s=self.now_s)


def test_it_claims_from_the_head_runs_in_order_and_settles_with_the_next_claim() -> None:
    it = Driven()
    assert it.exchange(worker.Begun()).rewind
    first = it.run(it.got(1, 2))
    assert (first.claim.lease.id, first.number) == ("job-1", 1)
    second = it.run(ran(first))
    assert (second.claim.lease.id, second.number) == ("job-2", 2)
    last = it.exchange(ran(second))
    assert [one.lease.id for one in last.settlements] == ["job-1", "job-2"]
    assert last.limit > 0
    assert [one.first for one in it.said] == [1]


def test_it_idles_only_after_a_look_at_the_head_and_says_so_once() -> None:
    it = Driven()
    it.exchange(worker.Begun())
    assert it(it.got()) == Wait(None)
    assert [one.claims for one in it.said] == [()]


def test_woken_it_claims_at_once_where_it_stopped_and_looks_at_the_head_only_then() -> None:
    it = Driven()
    it.exchange(worker.Begun())
    assert it(it.got()) == Wait(None)
    it.now_s += 60
    assert not it.exchange(Told(Wake())).rewind
    assert it.exchange(it.got()).rewind, "what has come may be in another lane, or before the position"
    assert it(it.got()) == Wait(None)


def test_woken_to_a_full_batch_it_looks_at_the_head_with_the_next_claim() -> None:
    it = Driven()
    it.exchange(worker.Begun())
    it(it.got())
    it.now_s += 60
    asked = it.exchange(Told(Wake())).limit
    first = it.run(it.got(*range(asked)))
    action = it(ran(first))
    while isinstance(action, Run):
        action = it(ran(action))
    assert isinstance(action, Exchange)
    assert action.rewind


def test_after_it_idled_it_claims_few() -> None:
    it = Driven()
    it.state.pace = Pace(job_s=0.0001, limit=LIMIT_MAX)
    assert it.exchange(worker.Begun()).limit == LIMIT_MAX
    it(it.got())
    assert it.exchange(Told(Wake())).limit == FIRST


def test_a_claim_that_waited_is_not_begun_and_goes_back() -> None:
    it = Driven()
    it.exchange(worker.Begun())
    first = it.run(it.got(1, 2))
    it.now_s += LEASE_S / 2
    settle = it.exchange(ran(first))
    assert (settle.limit, settle.recover) == (0, True)
    assert it.exchange(it.got()).limit > 0
    assert it.run(it.got(3)).number == 3, "a number is never used twice"


def test_a_job_is_begun_by_half_of_its_lease_or_not_at_all() -> None:
    it = Driven()
    it.exchange(worker.Begun())
    sent_s = it.now_s
    assert it.run(it.got(1)).begin_by_s == sent_s + LEASE_S / 2


def test_what_was_revoked_is_not_run() -> None:
    it = Driven()
    it.exchange(worker.Begun())
    first = it.run(it.got(1, 2, 3))
    it.run(ran(first))
    assert it.exchange(Revoked()).settlements[0].lease.id == "job-1"
    assert it.run(it.got(4)).number == 4


def test_what_comes_too_late_is_given_back_before_the_next_claim() -> None:
    it = Driven()
    it.exchange(worker.Begun())
    first = it.run(it.got(1, 2, 3))
    it.run(ran(first))
    given_back = it.exchange(TooLate())
    assert (given_back.limit, given_back.recover) == (0, True), (
        "nobody has taken back what is left of the batch"
    )
    assert it.exchange(it.got()).limit > 0
    assert it.run(it.got(4)).number == 4


def test_a_lost_claim_is_given_back_before_the_next() -> None:
    it = Driven()
    it.exchange(worker.Begun())
    wait = it(Lost(chance=0.0))
    assert isinstance(wait, Wait)
    assert wait.seconds is not None
    it.now_s += wait.seconds
    again = it.exchange(Waited())
    assert (again.limit, again.recover) == (0, True)
    after = it.exchange(it.got())
    assert after.limit > 0
    assert not after.recover


def test_a_lost_settlement_gives_back_nothing_that_is_still_to_be_run() -> None:
    it = Driven()
    it.exchange(worker.Begun())
    first = it.run(it.got(1, 2))
    assert it.exchange(ran(first, safe=False)).limit == 0, "its outcome cannot wait"
    it(Lost(chance=0.0))
    it.now_s += 1.0
    again = it.exchange(Waited())
    assert not again.recover, "job-2 is ours and will be run"
    assert it.run(it.got()).claim.lease.id == "job-2"


def test_an_outcome_is_settled_while_the_batch_goes_on_for_long() -> None:
    it = Driven()
    it.exchange(worker.Begun())
    first = it.run(it.got(1, 2, 3))
    second = it.run(ran(first))
    it.now_s += worker.SETTLE_WITHIN_S + 0.001
    assert it.exchange(ran(second)).limit == 0


def test_it_waits_longer_the_longer_the_database_is_away() -> None:
    it = Driven()
    it.exchange(worker.Begun())
    waits = []
    for _ in range(12):
        action = it(Lost(chance=0.5))
        assert isinstance(action, Wait)
        assert action.seconds is not None
        waits.append(action.seconds)
        it.now_s += action.seconds
        it.exchange(Waited())
    assert waits == sorted(waits)
    assert waits[-1] <= worker.RECONNECT_MAX_S


def test_it_leaves_when_told_to_after_its_outcomes_are_settled() -> None:
    it = Driven()
    it.exchange(worker.Begun())
    first = it.run(it.got(1))
    it.exchange(ran(first))
    last = it.exchange(Told(Stop()))
    assert (len(last.settlements), last.limit) == (1, 0)
    assert it(it.got()) == Leave(EXIT_OK)


def test_it_is_recycled_after_its_share() -> None:
    it = Driven(recycle_jobs=1)
    it.exchange(worker.Begun())
    assert it.exchange(ran(it.run(it.got(1)))).limit == 0
    assert it(it.got()) == Leave(EXIT_RECYCLED)
