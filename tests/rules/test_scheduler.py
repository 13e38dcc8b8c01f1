"""A scheduler's next statement: renewals first, then what is attested, then what time brings; it never spins."""

from __future__ import annotations

import random

import pytest

from runtime.model.exits import EXIT_OK
from runtime.model.jobs import Holder, Lease, Outlook, Renewed, Settlement
from runtime.model.messages import AnythingLeft, Message, Record, Recorded, Renew, Renewals, Stop, Woken
from runtime.rules import budgets, scheduler
from runtime.rules.scheduler import (
    CATCH_UP_S,
    PRUNE_EVERY_S,
    Answered,
    Cancels,
    CatchUp,
    Do,
    Forget,
    Leave,
    Left,
    Listen,
    Look,
    Lost,
    Notified,
    Prune,
    Reclaim,
    StartKicked,
    Told,
    Wait,
    Waited,
)

LEASE = Lease("a", 1)
QUIET = Outlook(due_now=False)


class Driven:
    """A scheduler machine with its clock; `outlook` is what it sees."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.state = scheduler.State(("default",), reclaim_every_s=5.0)
        self.outlook = QUIET
        self.caught_up = True
        self.said: list[Message] = []
        self.more: list[bool] = []  # to prune, the next answer last
        self.kicks: list[int] = []  # that are taken out, the next ones last

    def __call__(self, event: scheduler.Event) -> scheduler.Action:
        said, action = scheduler.step(self.state, event, self.now_s)
        self.said += said
        return action

    def answer(self, action: scheduler.Action) -> scheduler.Action:
        assert isinstance(action, Do)
        match action.call:
            case Look():
                return self(Answered(self.outlook))
            case Renew(leases=leases):
                return self(Answered(Renewed(held=frozenset(leases), cancelled=frozenset())))
            case Reclaim():
                return self(Answered(0))
            case scheduler.Tick():
                return self(Answered(0))
            case StartKicked():
                return self(Answered(self.kicks.pop() if self.kicks else 0))
            case Cancels():
                return self(Answered([]))
            case Prune():
                return self(Answered(self.more.pop() if self.more else False))
            case Left():
                return self(Answered(True))
            case CatchUp():
                return self(Answered(self.caught_up))
            case _:
                return self(Answered(None))

    def settle(self, action: scheduler.Action) -> list[scheduler.Call]:
        """Answer all that it asks for until it waits; what it asked for."""
        calls = []
        while isinstance(action, Do):
            calls.append(action.call)
            assert len(calls) < 20, "it asks without end"
            action = self.answer(action)
        assert isinstance(action, Wait)
        self.wait_s = action.seconds
        return calls


def started() -> Driven:
    it = Driven()
    assert it.settle(it(scheduler.Begun())) == [Listen(), Cancels(), CatchUp(), Look(), Prune()]
    return it


def test_a_renewal_goes_before_everything_that_waits() -> None:
    it = started()
    first = it(Told(Record(number=1, unstarted=(LEASE,))))
    assert first == Do(Record(number=1, unstarted=(LEASE,)))
    assert it(Told(Renew(sent_s=1.0, leases=(LEASE,)))) == first, (
        "the statement at hand is carried out all the same"
    )
    it(Told(Record(number=2)))
    calls = it.settle(first)
    assert [type(call) for call in calls][:3] == [Record, Renew, Record]
    assert [one.number for one in it.said if isinstance(one, Recorded)] == [1, 2]


def test_a_lost_record_is_written_when_the_database_is_back() -> None:
    it = started()
    it(Told(Record(number=1)))
    wait = it(Lost(chance=0.5))
    assert isinstance(wait, Wait)
    it.now_s += wait.seconds
    calls = it.settle(it(Waited()))
    assert calls[:2] == [Listen(), Record(number=1)]


def test_a_renewal_while_the_database_is_away_is_answered_at_once() -> None:
    it = started()
    it(Told(Renew(sent_s=1.0, leases=(LEASE,))))
    it(Lost(chance=0.5))
    it(Told(Renew(sent_s=2.0, leases=(LEASE,))))
    assert [(one.sent_s, one.ok) for one in it.said if isinstance(one, Renewals)] == [
        (1.0, False),
        (2.0, False),
    ]


def test_a_notification_wakes_a_worker_and_a_burst_of_them_wakes_one() -> None:
    it = started()
    it.now_s += 1.0
    it(Notified(("default",)))
    for _ in range(20):
        it(Notified(("default", "other")))
    assert sum(isinstance(one, Woken) for one in it.said) == 1
    it(Notified(("other",)))
    it.now_s += 1.0
    it(Waited())
    assert sum(isinstance(one, Woken) for one in it.said) == 2, "the end of the burst, and no other queue's"


def test_a_notification_is_followed_by_a_look_once_silent_pushes_can_be_seen() -> None:
    it = started()
    it.now_s += 1.0
    it.caught_up = False
    assert it.settle(it(Notified(("default",)))) == []
    for _ in range(3):
        assert it.wait_s <= CATCH_UP_S
        it.now_s += it.wait_s
        it.settle(it(Notified(("default",))))
        it.now_s += it.wait_s
        assert it.settle(it(Waited())) in ([CatchUp()], [])
    it.caught_up = True
    it.now_s += CATCH_UP_S
    assert it.settle(it(Waited())) == [CatchUp(), Look()]
    assert it.wait_s > 1.0


def test_it_looks_now_and_then_while_pushes_go_on_and_on() -> None:
    it = started()
    it.now_s += 1.0
    it.caught_up = False
    it.settle(it(Notified(("@later",))))
    looks, until_s = 0, it.now_s + 3.0
    while it.now_s < until_s:
        it.now_s += max(it.wait_s, 0.001)
        looks += it.settle(it(Waited())).count(Look())
    assert looks >= 3.0 / scheduler.CATCH_UP_LOOK_S - 1


def test_it_sleeps_until_the_next_job_is_due_and_then_wakes_a_worker() -> None:
    it = Driven()
    it.outlook = Outlook(due_now=False, next_due_s=3.0)
    it.settle(it(scheduler.Begun()))
    assert it.wait_s == pytest.approx(3.0, abs=0.01)
    it.now_s += it.wait_s
    it.settle(it(Waited()))
    assert any(isinstance(one, Woken) for one in it.said)


def test_it_prunes_on_while_there_is_more_and_then_in_an_hour() -> None:
    it = Driven()
    it.more = [False, True, True]
    assert it.settle(it(scheduler.Begun())).count(Prune()) == 3
    it.now_s += PRUNE_EVERY_S
    assert it.settle(it(Waited())).count(Prune()) == 1


def test_a_slow_answer_makes_nobody_late() -> None:
    it = Driven()
    it.outlook = Outlook(due_now=False, next_due_s=3.0)
    action = it(scheduler.Begun())
    while isinstance(action, Do) and not isinstance(action.call, Look):
        action = it.answer(action)
    it.now_s += 1.0
    it.settle(action)
    assert it.wait_s == pytest.approx(2.0, abs=0.01)


def test_an_ended_lease_is_reclaimed() -> None:
    it = Driven()
    it.outlook = Outlook(due_now=False, lease_end_s=-0.5)
    assert Reclaim(scheduler.RECLAIM_LIMIT) in it.settle(it(scheduler.Begun()))


def test_it_asks_who_serves_what_stays_due_once_a_minute() -> None:
    it = Driven()
    it.outlook = Outlook(due_now=True)
    asked_at = []
    it.settle(it(scheduler.Begun()))
    for _ in range(40):
        it.now_s += it.wait_s
        if scheduler.Unserved() in it.settle(it(Waited())):
            asked_at.append(it.now_s - 100.0)
    assert asked_at == [10.0, 70.0, 130.0, 190.0], "not before a program that starts had its time"


def test_it_asks_not_who_serves_while_all_that_is_due_is_claimed() -> None:
    it = Driven()
    it.settle(it(scheduler.Begun()))
    for number in range(40):
        it.outlook = Outlook(due_now=number % 2 == 0)
        it.now_s += it.wait_s
        assert scheduler.Unserved() not in it.settle(it(Waited()))


def test_it_leaves_only_when_all_that_is_attested_is_written() -> None:
    it = started()
    first = it(Told(Record(number=1)))
    it(Told(Stop()))
    assert it.answer(first) == Do(Forget())
    assert it(Answered(None)) == Leave(EXIT_OK)


@pytest.mark.parametrize(
    "settlements", [(), (budgets.cancelled(Lease("a", 1)),)], ids=["nothing", "an outcome"]
)
def test_without_a_database_it_leaves_when_it_has_nothing_to_tell(
    settlements: tuple[Settlement, ...],
) -> None:
    it = started()
    it(Told(Record(number=1, settlements=settlements, dead=Holder("n", 1, 1))))
    it(Told(Stop()))
    assert (it(Lost(0.5)) == Leave(EXIT_OK)) == (not settlements)


def test_it_asks_again_until_nothing_is_left() -> None:
    it = started()
    assert it(Told(AnythingLeft(kinds=("nap",)))) == Do(Left(("nap",)))
    assert it(Answered(True)) == Wait(scheduler.LEFT_EVERY_S)


@pytest.mark.parametrize("seed", range(100))
def test_it_never_spins(seed: int) -> None:
    """Whatever it sees, after some statements it waits, and when it has waited time has passed."""
    draw = random.Random(seed)
    it = Driven()
    it.settle(it(scheduler.Begun()))
    for _ in range(100):
        it.outlook = Outlook(
            due_now=draw.random() < 0.5,
            next_due_s=draw.choice([None, draw.random()]),
            next_tick_s=draw.choice([None, draw.uniform(-1.0, 1.0)]),
            lease_end_s=draw.choice([None, draw.uniform(-3.0, 3.0)]),
        )
        it.now_s += it.wait_s
        event = draw.choice(
            [Waited(), Waited(), Notified(("default",)), Told(AnythingLeft(kinds=())), Lost(draw.random())]
        )
        it.settle(it(event))
        assert it.wait_s > 0.0


STARTED = StartKicked(scheduler.KICK_LIMIT)


def test_a_kick_is_started_at_once_and_a_burst_of_them_once_more() -> None:
    it = started()
    it.now_s += 1.0
    assert it.settle(it(Notified((scheduler.KICK,)))) == [STARTED]
    for _ in range(20):
        assert it.settle(it(Notified((scheduler.KICK,)))) == []
    assert it.wait_s <= scheduler.KICKED_EVERY_S
    it.now_s += it.wait_s
    assert it.settle(it(Waited())) == [STARTED]
    it.now_s += 1.0
    assert it.settle(it(Waited())) == []


def test_what_was_kicked_wakes_a_worker() -> None:
    it = started()
    it.kicks = [1]
    it.settle(it(Notified((scheduler.KICK,))))
    assert sum(isinstance(one, Woken) for one in it.said) == 1


def test_more_kicks_than_one_statement_takes_are_started_in_steps() -> None:
    it = started()
    it.kicks = [3, scheduler.KICK_LIMIT, scheduler.KICK_LIMIT]
    calls = it.settle(it(Notified((scheduler.KICK,))))
    while it.kicks:
        it.now_s += it.wait_s
        calls += it.settle(it(Waited()))
    assert calls == [STARTED] * 3


def test_a_kick_whose_notification_was_lost_is_seen_by_a_look() -> None:
    it = Driven()
    it.outlook = Outlook(due_now=False, kicked=True)
    assert it.settle(it(scheduler.Begun())) == [Listen(), Cancels(), CatchUp(), Look(), STARTED, Prune()]


def test_kicks_are_started_once_the_database_is_back() -> None:
    it = started()
    assert it(Notified((scheduler.KICK,))) == Do(STARTED)
    wait = it(Lost(chance=0.5))
    assert isinstance(wait, Wait)
    it.now_s += wait.seconds
    assert it.settle(it(Waited())) == [Listen(), Cancels(), STARTED, CatchUp(), Look()]
