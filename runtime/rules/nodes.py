"""What the nodes that are there can do: which are lost, which are ready, and which due jobs none of them serves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from runtime.model.jobs import NodeView, QueueCount, Unserved

SEEN_WITHIN = timedelta(seconds=30)  # of the database's now: a node reports every 10 s at least
LIVING = ("running", "idle", "settling")  # states of a worker that runs a job, or would at once
SERVING = ("running", "unhealthy")  # states of a node that takes new work


def is_lost(node: NodeView, now: datetime) -> bool:
    """Whether a node has not reported lately; `now` is the database's."""
    return node.seen is None or now - node.seen > SEEN_WITHIN


def is_ready(node: NodeView) -> bool:
    """Whether a node that is not lost has a worker that a new job could run in."""
    living = [each for each in node.workers if each.name.startswith("worker") and each.state in LIVING]
    return node.state in SERVING and bool(living)


def unserved(waiting: Iterable[QueueCount], nodes: Sequence[NodeView], now: datetime) -> list[Unserved]:
    """What is due and of a kind, or in a queue, that no living node serves; nothing will run it as things are."""
    serving = [node for node in nodes if node.state in SERVING and not is_lost(node, now)]
    return [
        Unserved(kind=one.kind, queue=one.queue, queued=one.queued, oldest_due=one.oldest_due)
        for one in waiting
        if one.oldest_due is not None and not any(_serves(node, one) for node in serving)
    ]


def _serves(node: NodeView, waiting: QueueCount) -> bool:
    return waiting.kind in node.kinds and ("*" in node.queues or waiting.queue in node.queues)
