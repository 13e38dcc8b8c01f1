"""A scheduler says once a kind which due jobs no node serves."""

from __future__ import annotations

from datetime import UTC, datetime

from structlog.testing import capture_logs

from runtime.actors import scheduler
from runtime.edges.memory import MemoryStore
from runtime.model.jobs import NodeView
from tests.helpers.jobs import new

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def test_each_unserved_kind_is_one_line_with_its_queues() -> None:
    store = MemoryStore(lambda: NOW)
    store.report(
        NodeView(id="n", host="h", pid=1, version="1", state="running", kinds=["known"], queues=["a"])
    )
    store.push([new(kind="known", queue="a"), new(kind="known", queue="b"), new(kind="later", delay_s=60)])
    store.push([new(kind="strange", queue=queue) for queue in "abb"])

    with capture_logs() as lines:
        scheduler._warn_of_unserved(store)

    said = sorted((line["event"], line["log_level"], line["kind"], line["queues"]) for line in lines)
    assert said == [
        ("kind.unserved", "warning", "known", ["b"]),
        ("kind.unserved", "warning", "strange", ["a", "b"]),
    ]
