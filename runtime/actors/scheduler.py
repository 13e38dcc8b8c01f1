"""The scheduler actor: one a node, it runs no user code, and it does all that is not one job's business.

It renews this node's leases, takes expired ones back, writes what the supervisor attests, listens for new
work, ticks schedules, flushes progress and prunes history. One place blocks: waiting for a message or a
notification; one statement runs at a time.
"""

from __future__ import annotations

import random
import select

import msgspec
from setproctitle import setproctitle

from runtime.actors import ticking
from runtime.actors.attempt import log_dropped
from runtime.config import Config
from runtime.edges import clock, log
from runtime.edges.pipe import Pipe
from runtime.edges.postgres import PostgresStore
from runtime.edges.processes import Ends
from runtime.edges.store import Store
from runtime.errors import SchemaOutdated, StoreUnavailable
from runtime.model.exits import EXIT_FAILED
from runtime.model.jobs import Code, Ending
from runtime.model.messages import (
    AnythingLeft,
    Declare,
    Progressed,
    Ready,
    Record,
    Renew,
    Report,
    Stop,
    ToScheduler,
    Unready,
)
from runtime.rules import scheduler as rules
from runtime.rules.nodes import unserved

NODE_SEEN_S = 120.0  # a node not seen for so long is taken out of the list
PRECISE_S = 0.05  # of a long wait: the kernel may let one last a thousandth longer, select_estimate_accuracy() of Linux

Incoming = Stop | Renew | Record | Progressed | Report | Declare | AnythingLeft


class Spec(msgspec.Struct, frozen=True):
    """What a scheduler is told when it is made."""

    config: Config
    url: str
    node: str


def main(ends: Ends, spec: Spec) -> int:
    """Serve until told to stop. Returns the exit code."""
    config = spec.config
    log.setup(ends.log.fd, config.log.level, config.log.format, actor="scheduler")
    setproctitle("tenure: scheduler")
    pipe: Pipe[Incoming] = Pipe(ends.read.fd, ends.write.fd, ToScheduler)
    store = PostgresStore(
        spec.url,
        application_name="tenure scheduler",
        connect_timeout_s=config.database.connect_timeout,
        kept=config.kept,
    )
    state = rules.State(queues=config.service.queues, reclaim_every_s=config.lease.reclaim_every)
    pipe.send_and_wait(Ready())
    event: rules.Event = rules.Begun()
    while True:
        said, action = rules.step(state, event, clock.now_s())
        for message in said:
            pipe.send_and_wait(message)
        match action:
            case rules.Do(call):
                try:
                    event = rules.Answered(_call(store, spec, call))
                except StoreUnavailable as error:
                    log.event("warning", "store.unavailable", reason=str(error))
                    event = rules.Lost(random.random())
                except SchemaOutdated as error:
                    pipe.send_and_wait(Unready(reason=str(error)))
                    return EXIT_FAILED
            case rules.Wait(seconds):
                event = _wait(pipe, store, state, seconds)
            case rules.Leave(code):
                store.close()
                return code
        for heard in pipe.receive():  # between any two statements: a renewal goes before what waits
            rules.hear(state, heard, clock.now_s())


def _wait(pipe: Pipe[Incoming], store: PostgresStore, state: rules.State, seconds: float) -> rules.Event:
    """Wait for a message, a notification or the time; a statement may have brought notifications along."""
    seconds = seconds if seconds <= 2 * PRECISE_S else seconds - PRECISE_S
    if not state.listening:
        select.select([pipe.read_fd], [], [], seconds)
        return rules.Waited()
    try:
        words = store.notifications()
        if not words:
            ready, _, _ = select.select([pipe.read_fd, store.fileno()], [], [], seconds)
            words = store.notifications() if store.fileno() in ready else []
    except StoreUnavailable as error:
        log.event("warning", "store.unavailable", reason=str(error))
        return rules.Lost(random.random())
    return rules.Notified(tuple(words)) if words else rules.Waited()


def _call(store: PostgresStore, spec: Spec, call: rules.Call) -> rules.Answer:
    """Carry out one statement."""
    config = spec.config
    match call:
        case rules.Listen():
            store.check()
            store.listen()
        case rules.CatchUp():
            return store.caught_up()
        case Renew(leases=leases):
            return store.renew(leases, config.lease.duration)
        case Record():
            _record(store, call)
        case rules.Look():
            return store.outlook(config.service.queues)
        case rules.Reclaim(limit):
            lost = store.reclaim(limit)
            for lease in lost:
                log.event("warning", "lease.reclaimed", job=lease.id, epoch=lease.epoch, code=Code.LEASE_LOST)
            return len(lost)
        case rules.Tick():
            return ticking.tick(store)
        case rules.StartKicked(limit):
            return store.start_kicked(limit)
        case Declare(schedules=schedules, kinds=kinds):
            ticking.declare(store, schedules, kinds, spec.node)
        case rules.Cancels():
            return store.cancels(spec.node)
        case rules.Left(kinds):
            return store.pending(kinds, config.service.queues)
        case Progressed(entries=entries):
            store.progress(entries)
        case Report(node=node):
            store.report(node)
        case rules.Unserved():
            _warn_of_unserved(store)
        case rules.Prune():
            return store.prune(config.retention.finished, NODE_SEEN_S)
        case rules.Forget():
            store.forget(spec.node)
    return None


def _warn_of_unserved(store: Store) -> None:
    """One line a kind."""
    kinds: dict[str, list[str]] = {}
    for one in unserved(store.waiting(), store.nodes(), store.now()):
        kinds.setdefault(one.kind, []).append(one.queue)
    for kind, queues in kinds.items():
        log.event(
            "warning",
            "kind.unserved",
            kind=kind,
            queues=queues,
            reason="jobs are due that no node serves; start one that knows the kind and takes the queue",
        )


def _record(store: PostgresStore, record: Record) -> None:
    if record.settlements:
        store.end_sessions([one.lease for one in record.settlements if one.ending is not Ending.DONE])
        kept = store.settle(record.settlements)
        log_dropped("info", record.settlements, kept)
    if record.unstarted:
        store.give_back(record.unstarted)
    if record.dead is not None:
        store.abandon(record.dead)
