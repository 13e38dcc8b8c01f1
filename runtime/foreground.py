"""One job, now, for whoever sits before it: in a process of its own, and told about while it runs.

A handler that asks for the database, or declares a right for it, gets the configured one, and there the job is a row
like any other, claimed in the transaction that pushes it: no service can take it, and what it leaves can be looked up.
Any other runs without a database.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

import msgspec
import psycopg
from setproctitle import setproctitle

from runtime.actors.attempt import Redact
from runtime.config import Config
from runtime.definition import Definition, Job
from runtime.edges import processes
from runtime.edges.fence import Sessions
from runtime.edges.ids import new_id
from runtime.edges.postgres import PostgresStore
from runtime.model.exits import Progress
from runtime.model.jobs import Claim, Ending, Holder, Settlement, State, Want
from runtime.model.messages import Limits
from runtime.providers import Provided
from runtime.queue import Queue, new_job, opened
from runtime.registry import DEFINED, hook
from runtime.rules import budgets
from runtime.testing import Outcome, Show, attempt_apart, claim_of, once, outcome_of

NODE = "foreground"  # what holds the lease, in the place of a node
LEASE_MARGIN_S = 60.0  # that a lease outlasts the time limit: nobody renews it
_DATABASE = (Queue, psycopg.Connection)  # who asks for one of these needs a database


class Ended(NamedTuple):
    """An attempt that is over."""

    settlement: Settlement | None  # None: the handler has settled its job itself
    progress: Progress | None
    seconds: float


def run(job: Job, config: Config, show: Show, *, in_database: bool = False) -> Outcome:
    """Run a job, one attempt without retries, under its limits; what came of it.

    An interrupt, or a SIGTERM, ends the process with all that it has started.

    Args:
        in_database: make it a row of the database, also when its handler asks for none and has no right for it.

    Raises:
        KeyboardInterrupt: it was interrupted; a row is then cancelled.
        PayloadInvalid: the job is none that could be pushed.
        Error: as of `runtime.queue.opened`.
    """
    definition = DEFINED.definition_of(job)
    setproctitle(f"tenure: job run {definition.kind}")  # the words of the command line hold a payload
    worker = config.worker
    limits = once(definition.limits(worker.timeout))
    limits = msgspec.structs.replace(limits, memory_bytes=limits.memory_bytes or worker.memory_limit)

    def attempt(claim: Claim, config: Config, sessions: Sessions, redact: Redact | None = None) -> Ended:
        began_s = time.monotonic()
        with closing(Provided(config)) as provided, _alone():
            settlement, progress = attempt_apart(
                claim,
                provided,
                sessions,
                limits=limits,
                kill_after_s=worker.kill_after,
                show=show,
                log_as=config.log,
                redact=redact,
            )
        return Ended(settlement, progress, time.monotonic() - began_s)

    has_right = definition.reach.rights is not None and definition.reach.database
    if not in_database and not has_right and not any(need.type in _DATABASE for need in definition.needs):
        claim = claim_of(definition, job)
        settlement, progress, seconds = attempt(claim, config, Sessions(""))
        assert settlement is not None, "without a database it cannot have settled itself"
        return outcome_of(claim, settlement, progress, seconds)
    redact = hook("service.redact", config.service.redact)
    with opened(config) as store:
        url = msgspec.structs.replace(config.database, url=store.url)
        claim = _claimed(store, definition, job, limits)
        settlement = budgets.cancelled(claim.lease)
        try:
            config = msgspec.structs.replace(config, database=url)
            settlement, progress, seconds = attempt(claim, config, Sessions(store.url), redact)
        finally:
            if settlement is not None:
                store.settle([_final(settlement)])
        return outcome_of(claim, settlement or _completed(store, claim), progress, seconds)


def _claimed(store: PostgresStore, definition: Definition, job: Job, limits: Limits) -> Claim:
    """The claim of a new row, which nobody else has seen queued: it has a queue of its own until it is claimed."""
    id = new_id()
    new = new_job(definition, job, id=id, queue=f"run-{id}")
    want = Want(
        holder=Holder(NODE, 1, os.getpid()),
        limit=1,
        lease_s=limits.timeout_s + LEASE_MARGIN_S,
        kinds=(definition.kind,),
        queues=(new.queue,),
    )
    with psycopg.connect(store.url) as conn:
        own = PostgresStore.over(conn)
        own.push([new])
        [claim] = own.claim(want)
    return claim


def _completed(store: PostgresStore, claim: Claim) -> Settlement:
    """How a handler has settled its job itself."""
    view = store.status(claim.lease.id)
    result = None if view is None or view.result is None else bytes(view.result).decode()
    return Settlement(lease=claim.lease, ending=Ending.DONE, state=State.DONE, result=result)


def _final(settlement: Settlement) -> Settlement:
    """The same, with the job ended: nothing follows this attempt."""
    if settlement.state is not State.QUEUED:
        return settlement
    return msgspec.structs.replace(settlement, state=State.CANCELLED)


@contextmanager
def _alone() -> Iterator[None]:
    """See to it that nothing which the job has started outlives this, and that SIGTERM ends it as an interrupt does."""
    processes.adopt_orphans()
    before = processes.children()
    former = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        processes.end_strangers(before, alive_too=True)
        signal.signal(signal.SIGTERM, former)
