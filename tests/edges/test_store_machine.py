"""Both stores are driven with the same calls, made up by hypothesis, and every answer is compared."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from runtime.edges.memory import MemoryStore
from runtime.edges.postgres import PostgresStore
from runtime.model.exits import Certificate, Verdict
from runtime.model.jobs import Ending, Failure, Holder, Lease, NodeView, Progress, State
from tests.helpers.jobs import new, settlement, want

DAY_S = 86_400.0
ENDINGS = {
    State.DONE: [Ending.DONE],
    State.QUEUED: [Ending.RETRY, Ending.CRASHED, Ending.RELEASED, Ending.SNOOZED, Ending.TIMED_OUT],
    State.DEAD: [Ending.DEAD, Ending.CRASHED],
    State.CANCELLED: [Ending.CANCELLED],
}
CERTIFICATE = Certificate(
    verdict=Verdict.SIGNAL,
    signal=9,
    exit_code=None,
    cpu_seconds=0.5,
    peak_memory_bytes=1,
    last_progress=Progress(1),
)

ids = st.integers(0, 11).map(lambda number: f"00000000-0000-7000-8000-{number:012x}")
kinds = st.sampled_from(["a", "b"])
queues = st.sampled_from(["x", "y"])
some_queues = st.sampled_from([("*",), ("x",), ("y", "x"), ("z",)])
holders = st.builds(Holder, st.sampled_from(["n1", "n2"]), st.integers(1, 2), st.just(7))
delays = st.sampled_from([0.0, 0.5, 30.0, -1.0, float("inf")])
results = st.sampled_from([None, "1", '{"b": 2, "a": [1.5]}', '"\\u0000"', "no json"])
errors = st.sampled_from([None, Failure("E", "m\0", "t")])
new_jobs = st.builds(
    new,
    id=ids,
    kind=kinds,
    queue=queues,
    priority=st.integers(0, 2),
    delay_s=delays,
    unique=st.sampled_from([None, None, "u", "v"]),
    payload=st.sampled_from(["{}", '{"n": 1}']),
)


def plain(answer: Any) -> Any:
    """An answer as plain values, so that the spelling of JSON does not matter."""
    return msgspec.json.decode(msgspec.json.encode(_sorted(answer)))


def _sorted(answer: Any) -> Any:
    if isinstance(answer, frozenset):
        return sorted(answer)
    if isinstance(answer, msgspec.Struct):
        return {name: _sorted(getattr(answer, name)) for name in answer.__struct_fields__}
    if isinstance(answer, list | tuple):
        return [_sorted(one) for one in answer]
    return msgspec.json.decode(answer) if isinstance(answer, msgspec.Raw) else _payload(answer)


def _payload(answer: Any) -> Any:
    return msgspec.json.decode(answer) if isinstance(answer, str) and answer.startswith("{") else answer


class Stores(RuleBasedStateMachine):
    """Two stores and a clock. `leases` is every lease ever given, so that most of them are stale."""

    dsn: str
    leases = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.now = datetime(2026, 3, 1, 12, tzinfo=UTC)
        self.memory = MemoryStore(lambda: self.now)
        self.postgres = PostgresStore(self.dsn, clock=lambda: self.now)
        self.postgres._open().execute(
            "truncate tenure.job, tenure.finished, tenure.dead, tenure.schedule, tenure.node"
        )

    def teardown(self) -> None:
        self.postgres.close()

    def both(self, call: str, *given: Any, **named: Any) -> Any:
        expected = getattr(self.memory, call)(*given, **named)
        answer = getattr(self.postgres, call)(*given, **named)
        assert plain(answer) == plain(expected), call
        return expected

    @rule(seconds=st.sampled_from([0.0, 0.25, 1.0, 10.0, 31.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(jobs=st.lists(new_jobs, min_size=1, max_size=5))
    def push(self, jobs: list) -> None:
        self.both("push", jobs)

    @rule(
        target=leases,
        old=st.lists(leases, max_size=3),
        state=st.sampled_from(list(ENDINGS)),
        data=st.data(),
        limit=st.integers(0, 4),
        holder=holders,
        kinds=st.sampled_from([("a",), ("a", "b")]),
        queues=some_queues,
        rewind=st.booleans(),
    )
    def exchange(self, old, state, data, limit, holder, kinds, queues, rewind) -> Any:
        told = [self.outcome(lease, state, data) for lease in old]
        wanted = want(limit=limit, holder=holder, kinds=kinds, queues=queues, rewind=rewind)
        return multiple(*(claim.lease for claim in self.both("exchange", told, wanted).claims))

    @rule(old=st.lists(leases, min_size=1, max_size=4), data=st.data())
    def settle(self, old: list[Lease], data: st.DataObject) -> None:
        states = st.sampled_from(list(ENDINGS))
        self.both("settle", [self.outcome(lease, data.draw(states), data) for lease in old])

    def outcome(self, lease: Lease, state: State, data: st.DataObject) -> Any:
        return settlement(
            lease,
            state,
            ending=data.draw(st.sampled_from(ENDINGS[state])),
            delay_s=data.draw(delays),
            result=data.draw(results),
            error=None if state is State.DONE else data.draw(errors),
            certificate=None if state is State.DONE else data.draw(st.sampled_from([None, CERTIFICATE])),
        )

    @rule(old=st.lists(leases, max_size=4), lease_s=st.sampled_from([5.0, 60.0]))
    def renew(self, old: list[Lease], lease_s: float) -> None:
        self.both("renew", old, lease_s)

    @rule(old=st.lists(leases, max_size=3))
    def give_back(self, old: list[Lease]) -> None:
        self.both("give_back", old)

    @rule(holder=holders)
    def abandon(self, holder: Holder) -> None:
        self.both("abandon", holder)

    @rule(limit=st.integers(1, 3))
    def reclaim(self, limit: int) -> None:
        self.both("reclaim", limit)

    @rule(old=st.lists(leases, max_size=3), done=st.sampled_from([1, 0.5, float("nan")]))
    def progress(self, old: list[Lease], done: float) -> None:
        self.both("progress", [(lease, Progress(done, 3, "n\0")) for lease in old])

    @rule(id=ids)
    def cancel(self, id: str) -> None:
        self.both("cancel", id)

    @rule(id=ids)
    def retry(self, id: str) -> None:
        self.both("retry", id)

    @rule(name=st.sampled_from(["s", "t"]), kind=kinds, every_s=st.sampled_from([0.5, 7.0]), queue=queues)
    def schedule(self, name: str, kind: str, every_s: float, queue: str) -> None:
        self.both("schedule", name, kind, "{}", every_s, queue=queue)

    @rule(name=st.sampled_from(["s", "t"]))
    def unschedule(self, name: str) -> None:
        self.both("unschedule", name)

    @rule(limit=st.integers(1, 3))
    def tick(self, limit: int) -> None:
        self.both("tick", limit)

    @rule(id=st.sampled_from(["n1", "n2"]), pid=st.integers(1, 3))
    def report(self, id: str, pid: int) -> None:
        self.both("report", NodeView(id=id, host="h", pid=pid, version="1", state="running"))

    @rule(id=st.sampled_from(["n1", "n2"]))
    def forget(self, id: str) -> None:
        self.both("forget", id)

    @rule(days=st.integers(0, 2))
    def prune(self, days: int) -> None:
        self.now += timedelta(days=days)
        self.memory.prune(DAY_S, 60.0)
        self.postgres.prune(DAY_S, 60.0)

    @rule(queues=some_queues, kind=kinds, state=st.sampled_from([None, *State]))
    def look(self, queues: tuple[str, ...], kind: str, state: State | None) -> None:
        self.both("outlook", queues)
        self.both("pending", [kind], queues)
        self.both("jobs", state, kind=kind, limit=3)
        self.both("dead", kind=kind, limit=2)
        self.both("cancels", "n1")

    @invariant()
    def nothing_differs(self) -> None:
        self.both("counts")
        self.both("schedules")
        self.both("nodes")
        for job in self.both("jobs"):
            self.both("status", job.id)


@pytest.mark.timeout(120)
def test_both_stores_give_the_same_answers(schema_dsn: str) -> None:
    Stores.dsn = schema_dsn
    run_state_machine_as_test(
        Stores,
        settings=settings(
            max_examples=20,
            stateful_step_count=40,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
