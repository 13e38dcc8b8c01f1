"""Jobs, wants and settlements with defaults, so that a test states only what matters to it."""

from __future__ import annotations

from typing import Any

from runtime.edges.ids import new_id
from runtime.model.jobs import Claim, Ending, Holder, Lease, NewJob, Settlement, State, Want

HOLDER = Holder("node-a", 1, 101)


def new(**given: Any) -> NewJob:
    return NewJob(**{"id": new_id(), "kind": "noop", **given})


def want(**given: Any) -> Want:
    return Want(
        **{"holder": HOLDER, "limit": 10, "lease_s": 30.0, "kinds": ("noop",), "queues": ("*",), **given}
    )


def settlement(lease: Lease | Claim, state: State = State.DONE, **given: Any) -> Settlement:
    """How an attempt usually ends when its job comes to be in `state`."""
    usual = {
        State.DONE: Ending.DONE,
        State.QUEUED: Ending.RETRY,
        State.DEAD: Ending.DEAD,
        State.CANCELLED: Ending.CANCELLED,
    }
    lease = lease.lease if isinstance(lease, Claim) else lease
    return Settlement(**{"lease": lease, "ending": usual[state], "state": state, **given})
