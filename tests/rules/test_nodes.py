"""Which due jobs no living node serves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runtime.model.jobs import NodeView, QueueCount
from runtime.rules.nodes import SEEN_WITHIN, unserved

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def node(**given: Any) -> NodeView:
    known = {"kinds": ["nap"], "queues": ["default"], "state": "running", "seen": NOW}
    return NodeView(**{"id": "n", "host": "h", "pid": 1, "version": "1", **known, **given})


def waiting(kind: str = "nap", queue: str = "default", due: datetime | None = NOW) -> QueueCount:
    return QueueCount(queue=queue, kind=kind, queued=3, running=0, oldest_due=due)


@pytest.mark.parametrize(
    ("nodes", "is_served"),
    [
        ([node()], True),
        ([node(queues=["*"])], True),
        ([node(state="unhealthy")], True),
        ([], False),
        ([node(kinds=["other"])], False),
        ([node(queues=["other"])], False),
        ([node(kinds=["other"]), node(queues=["other"])], False),
        ([node(kinds=["other"]), node()], True),
        ([node(state="draining")], False),
        ([node(seen=NOW - SEEN_WITHIN)], True),
        ([node(seen=NOW - SEEN_WITHIN - timedelta(seconds=1))], False),
    ],
)
def test_a_due_job_is_served_by_a_living_node_that_knows_its_kind_and_takes_its_queue(
    nodes: list[NodeView], is_served: bool
) -> None:
    found = unserved([waiting()], nodes, NOW)
    assert [(one.kind, one.queue, one.queued, one.oldest_due) for one in found] == (
        [] if is_served else [("nap", "default", 3, NOW)]
    )


def test_what_is_not_due_is_nobodys_fault() -> None:
    assert unserved([waiting(due=None)], [], NOW) == []
