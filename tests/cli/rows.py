"""Jobs in every state, made through the store as a worker would."""

from __future__ import annotations

from runtime.edges.ids import new_id
from runtime.edges.postgres import PostgresStore
from runtime.model.exits import Certificate, Progress, Verdict
from runtime.model.jobs import Claim, Ending, Failure, Holder, NewJob, Settlement, State, Want

KIND = "cli.scale"
CERTIFICATE = Certificate(
    verdict=Verdict.SIGNAL,
    signal=11,
    exit_code=None,
    cpu_seconds=2.5,
    peak_memory_bytes=64 * 2**20,
    last_progress=Progress(40, 100, "page 40"),
    output_tail="decoding page 40\nlast words",
    stack='  File "images.py", line 12 in decode',
)


def claimed(store: PostgresStore, **given: object) -> Claim:
    """A new job of `KIND`, running in a worker."""
    store.push([NewJob(**{"id": new_id(), "kind": KIND, "payload": '{"path": "a"}', **given})])  # type: ignore[arg-type]
    [claim] = store.claim(
        Want(holder=Holder("n1", 2, 4711), limit=1, lease_s=60.0, kinds=(KIND,), queues=("*",))
    )
    return claim


def done(store: PostgresStore) -> str:
    lease = claimed(store).lease
    assert store.settle([Settlement(lease=lease, ending=Ending.DONE, state=State.DONE, result='"made"')]) == [
        True
    ]
    return lease.id


def crashed(store: PostgresStore, **given: object) -> str:
    lease = claimed(store, **given).lease
    dead = Settlement(lease=lease, ending=Ending.CRASHED, state=State.DEAD, certificate=CERTIFICATE)
    assert store.settle([dead]) == [True]
    return lease.id


def failed(store: PostgresStore, message: str = "no such file") -> str:
    lease = claimed(store).lease
    error = Failure("ValueError", message, "Traceback …\nValueError")
    assert store.settle([Settlement(lease=lease, ending=Ending.DEAD, state=State.DEAD, error=error)]) == [
        True
    ]
    return lease.id
