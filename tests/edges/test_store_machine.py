"""Both stores are driven with the same calls, made up by hypothesis, and every answer is compared."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from runtime.edges.ids import tick_id
from runtime.edges.memory import MemoryStore
from runtime.edges.postgres import PostgresStore
from runtime.edges.pushing import LARGE
from runtime.model.exits import Certificate, Progress, Verdict
from runtime.model.jobs import Ending, Failure, Holder, Kick, Lease, NewJob, NewSchedule, NodeView, State
from tests.edges.conftest import EMPTY
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
some_queues = st.sampled_from([("*",), ("*",), ("x",), ("y", "x"), ("z",)])
holders = st.builds(Holder, st.sampled_from(["n1", "n2"]), st.integers(1, 2), st.just(7))
delays = st.sampled_from([0.0, 0.0, 0.5, -1.0, 30.0, float("inf")])
results = st.sampled_from([None, "1", '{"b": 2, "a": [1.5]}', '"\\u0000"', "no json"])
errors = st.sampled_from([None, Failure("E", "m\0", "t")])
kicks = st.builds(Kick, kind=kinds, queue=queues, priority=st.integers(0, 2))
new_jobs = st.builds(
    new,
    id=ids,
    kind=kinds,
    queue=queues,
    priority=st.integers(0, 2),
    delay_s=delays,
    unique=st.sampled_from([None, None, "u", "v"]),
    payload=st.sampled_from(["{}", '{"n": 1}', json.dumps({"large": "x" * LARGE})]),
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
    """Two stores and a clock. `given` is every lease ever given, so that many of them are stale."""

    dsn: str

    def __init__(self) -> None:
        super().__init__()
        self.now = datetime(2026, 3, 1, 12, tzinfo=UTC)
        self.memory = MemoryStore(lambda: self.now)
        self.postgres = PostgresStore(self.dsn, clock=lambda: self.now)
        self.postgres._open().execute(EMPTY)
        self.given: list[Lease] = []

    def some(self, data: st.DataObject, most: int = 3) -> list[Lease]:
        """Leases, current ones more often than stale ones."""
        current = [job.lease for job in self.memory._running()]
        pool = current * 3 + self.given
        return data.draw(st.lists(st.sampled_from(pool), max_size=most)) if pool else []

    @initialize(jobs=st.lists(new_jobs, min_size=6, max_size=12))
    def begin(self, jobs: list) -> None:
        self.both("push", jobs)

    def teardown(self) -> None:
        try:
            self.every_job_agrees()
        finally:
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
        data=st.data(),
        limit=st.sampled_from([0, 1, 2, 4]),
        holder=holders,
        kinds=st.sampled_from([("a",), ("a", "b"), ("a", "b")]),
        queues=some_queues,
        rewind=st.booleans(),
    )
    def exchange(self, data, limit, holder, kinds, queues, rewind) -> None:
        told = self.outcomes(data)
        wanted = want(limit=limit, holder=holder, kinds=kinds, queues=queues, rewind=rewind)
        self.given += [claim.lease for claim in self.both("exchange", told, wanted).claims]

    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        wanted = want(limit=4, kinds=("a", "b"), holder=data.draw(holders), rewind=data.draw(st.booleans()))
        self.given += [claim.lease for claim in self.both("claim", wanted)]

    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        self.both("settle", self.outcomes(data))

    def outcomes(self, data: st.DataObject) -> list:
        states = st.sampled_from(list(ENDINGS))
        return [self.outcome(lease, data.draw(states), data) for lease in self.some(data)]

    def outcome(self, lease: Lease, state: State, data: st.DataObject) -> Any:
        return settlement(
            lease,
            state,
            ending=data.draw(st.sampled_from(ENDINGS[state])),
            delay_s=data.draw(delays),
            result=data.draw(results),
            error=None if state is State.DONE else data.draw(errors),
            certificate=None if state is State.DONE else data.draw(st.sampled_from([None, CERTIFICATE])),
            kicks=tuple(data.draw(st.lists(kicks, max_size=2))) if state is State.DONE else (),
        )

    @rule(data=st.data(), lease_s=st.sampled_from([5.0, 60.0]))
    def renew(self, data: st.DataObject, lease_s: float) -> None:
        self.both("renew", self.some(data), lease_s)

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        self.both("give_back", self.some(data))

    @rule(holder=holders)
    def abandon(self, holder: Holder) -> None:
        self.both("abandon", holder)

    @rule(limit=st.integers(1, 3))
    def reclaim(self, limit: int) -> None:
        self.both("reclaim", limit)

    @rule(data=st.data(), done=st.sampled_from([1, 0.5, float("nan")]))
    def progress(self, data: st.DataObject, done: float) -> None:
        self.both("progress", [(lease, Progress(done, 3, "n\0")) for lease in self.some(data)])

    @rule(data=st.data())
    def cancel_claimed(self, data: st.DataObject) -> None:
        for lease in self.some(data, most=1):
            self.both("cancel", lease.id)

    @rule(id=ids)
    def cancel(self, id: str) -> None:
        self.both("cancel", id)

    @rule(id=ids)
    def retry(self, id: str) -> None:
        self.both("retry", id)

    @rule(kind=kinds)
    def retry_all(self, kind: str) -> None:
        self.both("retry_all", kind)

    @rule(job=new_jobs, replace=st.booleans(), key=st.sampled_from(["u", "v"]))
    def push_unique(self, job: NewJob, replace: bool, key: str) -> None:
        self.both("push_unique", msgspec.structs.replace(job, unique=key), replace=replace)

    @rule(asked=st.lists(kicks, min_size=1, max_size=3))
    def kick(self, asked: list[Kick]) -> None:
        self.both("kick", asked)

    @rule(limit=st.integers(1, 3))
    def start_kicked(self, limit: int) -> None:
        self.both("start_kicked", limit)
        for kind in ("a", "b"):  # each store makes ids of its own
            for job in self.memory._live():
                if (job.kind, job.unique) == (kind, f"schedule:{kind}"):
                    self.postgres._open().execute(
                        "update tenure.job set id = %s where kind = %s and unique_key = %s",
                        (job.id, kind, job.unique),
                    )

    @rule(id=ids, delay_s=delays)
    def reschedule(self, id: str, delay_s: float) -> None:
        self.both("reschedule", id, delay_s=delay_s)

    @rule(id=ids)
    def delete(self, id: str) -> None:
        self.both("delete", id)

    @rule(name=st.sampled_from(["s", "a"]), kind=kinds, every_s=st.sampled_from([0.5, 7.0]), queue=queues)
    def schedule(self, name: str, kind: str, every_s: float, queue: str) -> None:
        spec = f'{{"every_s": {every_s}}}'
        self.both("schedule", NewSchedule(name=name, kind=kind, spec=spec, queue=queue))

    @rule(name=st.sampled_from(["s", "a"]), paused=st.booleans())
    def pause(self, name: str, paused: bool) -> None:
        self.both("pause", name, paused)

    @rule(name=st.sampled_from(["s", "a"]))
    def unschedule(self, name: str) -> None:
        self.both("unschedule", name)

    @rule(limit=st.integers(1, 3))
    def tick(self, limit: int) -> None:
        for one in self.both("overdue", limit):
            following = one.due + timedelta(seconds=limit)
            job = NewJob(
                id=tick_id(one.name, one.due), kind=one.kind, due=one.due, unique=f"schedule:{one.name}"
            )
            self.both("advance", one.name, one.due, following, None if one.live else job)

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
        self.both("waiting", 2)

    @invariant()
    def the_lists_agree(self) -> None:
        self.both("jobs")
        self.both("outlook", ("*",))

    @rule()
    def every_job_agrees(self) -> None:
        for call in ("counts", "schedules", "nodes"):
            self.both(call)
        for job in self.both("jobs"):
            self.both("status", job.id)


@pytest.mark.timeout(120)
def test_both_stores_give_the_same_answers(schema_dsn: str) -> None:
    Stores.dsn = schema_dsn
    run_state_machine_as_test(
        Stores,
        settings=settings(
            max_examples=50,
            stateful_step_count=30,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
