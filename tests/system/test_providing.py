"""Goal: a handler gets what it asks for by type, made once a worker and closed with it."""

from __future__ import annotations

from typing import Any

import msgspec

from runtime.model.jobs import State
from tests.helpers.service import Stage
from tests.helpers.waiting import wait_for

LACKING = """
from runtime import NO_RETRY, Context, Job, job

class Unknown: ...

@job("lacking", retry=NO_RETRY)
class Lacking(Job):
    def run(self, ctx: Context, thing: Unknown) -> None: ...
"""


def result(on: Stage, job: str) -> Any:
    view = on.ended(job)
    assert view.result is not None
    return msgspec.json.decode(view.result)


def test_values_are_made_once_a_worker_and_closed_at_its_end(on: Stage) -> None:
    service = on.run(workers=1)
    first, second = result(on, on.push("provided")), result(on, on.push("provided"))
    assert first["pid"] == second["pid"]
    assert first["extra"] == 3
    assert result(on, first["child"]) == 1, "jobs push jobs"
    assert len(on.effects(what="row")) == 2, "committed with the return"
    assert len(on.store.jobs(kind="count")) == 2, "and what was pushed in its transaction with it"
    assert service.stop() == 0
    [closed] = on.effects(what="tool closed")
    assert closed.value == "2"


def test_the_connection_of_a_failed_attempt_is_rolled_back(on: Stage) -> None:
    on.run(workers=1)
    on.ended(on.push("provided", fail=True), State.DEAD)
    assert not on.effects(what="row")
    assert on.store.jobs(kind="count") == []


def test_a_kind_that_asks_for_what_nobody_provides_is_named_and_waits(on: Stage) -> None:
    (on.place / "lacking_jobs.py").write_text(LACKING)
    service = on.run(workers=1, handlers=("tests.system.jobs", "lacking_jobs"))
    [broken] = wait_for(lambda: service.events("handlers.broken"))
    assert broken["module"] == "kind lacking"
    assert "'thing'" in broken["reason"]
    job = on.push("lacking")
    on.ended(on.push("quick"))
    view = on.store.status(job)
    assert view is not None
    assert (view.state, view.attempt) == (State.QUEUED, 0)


def test_a_payload_of_an_older_version_is_upgraded(on: Stage) -> None:
    on.run(workers=1)
    assert result(on, on.push("grown", name="a")) == ["a"]
    assert result(on, on.push("grown", names=["a", "b"], **{"$version": 2})) == ["a", "b"]
    view = on.ended(on.push("grown", names=[], **{"$version": 3}), State.DEAD)
    error = view.attempts[0].error
    assert error is not None
    assert "$version" in error.message
