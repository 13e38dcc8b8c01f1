"""One schedule: a run of some nodes and jobs, with its faults, wholly made by its seed, and judged at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from runtime.model.jobs import Kick, Lease, NewJob
from runtime.rules.attempts import BATCH_S
from runtime.sim.database import Database, SimStore
from runtime.sim.faults import Faults
from runtime.sim.history import History, Violation
from runtime.sim.node import Node, Setup
from runtime.sim.worker import KICKED, LIMITS
from runtime.sim.world import World

PATIENCE_S = 90.0  # after the last fault, until when every job has ended
LEASE_S = 2.0
RENEW_EVERY_S = 0.5
CONFIRM_S = 10.0  # after the last job, until when every supervisor has what it attested confirmed
CROWD = 12  # jobs that are pushed at once
LOOK_EVERY_S = 0.1
BACK_S = 0.15  # and so long a claim in nobody's hands: heard of behind some messages (`BUSY_S` each), then one record
WAITS_S = 0.6  # at most so long waits a due job, or a claim behind others, while a worker idles, when only workers die
BEHIND_S = BATCH_S + 0.2  # and so long a claim behind others while none does


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one schedule."""

    seed: int
    events: int
    virtual_s: float
    faults: Counter[str]
    problem: str | None  # None: everything held
    trace: list[str]


def run(seed: int, *, traced: bool = False, check_epoch: bool = True, fencing: bool = True) -> Outcome:
    """Carry out the schedule of a seed.

    Args:
        traced: keep what happened, as lines.
        check_epoch: False: the store does not ask for the epoch, to show that this would be found.
        fencing: False: nodes do not fence themselves, to show that this would be found.
    """
    world = World(seed, traced=traced)
    chance = world.chance
    history = History(LIMITS)
    database = Database(world, history, check_epoch=check_epoch)
    quiet = chance.random() < 0.2  # nothing goes wrong but that workers die and supervisors are late
    crowded = quiet and chance.random() < 0.6  # batches of many jobs, for late supervisors to judge
    database.calm = quiet
    setup = Setup(
        workers=chance.choice((1, 2, 2, 3)),
        lease_s=LEASE_S,
        renew_every_s=RENEW_EVERY_S,
        fencing=fencing,
        recycle_jobs=chance.choice((0, 0, 0, 3)),
        until_idle=chance.random() < 0.1,
        batch=chance.choice((3, 6) if crowded else (0, 0, 0, 3, 6)),
    )
    count = chance.choice((1,) if crowded else (1, 1, 2) if quiet else (2, 2, 3))
    nodes = [Node(world, f"node{n}", setup, database, history) for n in range(1, count + 1)]
    calm_s = 6.0 if crowded else chance.choice((1.0, 3.0, 6.0))
    ids = (_push_crowds if crowded else _push)(world, database, calm_s)
    Faults(world, nodes, database, ids, quiet=quiet, crowded=crowded).draw(calm_s)
    if quiet:
        _watch_waits(world, nodes, database, history, calm_s, {})
    problem = None
    try:
        _play(world, database.store, history, nodes, ids, calm_s)
    except Violation as violation:
        problem = str(violation)
    return Outcome(seed, world.events, world.now_s, world.faults, problem, world.trace or [])


def _play(
    world: World, store: SimStore, history: History, nodes: list[Node], ids: list[str], calm_s: float
) -> None:
    """Let it all happen, and judge it. Raises `Violation`."""
    world.run(calm_s, lambda: False)
    over = world.run(calm_s + PATIENCE_S, lambda: store.is_over)
    history.check([job for id in (*ids, *history.runs) if (job := store.status(id)) is not None], world.now_s)
    if not over:
        raise Violation(f"not over after {PATIENCE_S} s")
    if not world.run(world.now_s + CONFIRM_S, lambda: not any(map(_unconfirmed, nodes))):
        raise Violation("what a supervisor attests was never confirmed to it")


def _push(world: World, database: Database, calm_s: float) -> list[str]:
    """Push some jobs at the start and some on the way, and kick a kind; the ids of what was pushed."""
    chance = world.chance
    kinds = chance.choice(
        (tuple(LIMITS), tuple(LIMITS), ("long",), ("quick",), ("quick", "quick", "quick", "long"))
    )
    most = 24 if "quick" in kinds[:1] else 10
    new = _jobs(chance, kinds, chance.randint(2, most))
    early = chance.randrange(len(new) + 1)
    database.store.push(new[:early])
    for job in new[early:]:
        world.at(calm_s * chance.random(), database.store.push, [job])
    for _ in range(chance.choice((0, 0, 0, 1, 4))):
        world.at(calm_s * chance.random(), database.store.kick, [Kick(kind=KICKED)])
    return [job.id for job in new]


def _push_crowds(world: World, database: Database, calm_s: float) -> list[str]:
    """Push a few times many quick jobs at once, with a slow one here and there; the ids."""
    new = _jobs(world.chance, ("quick", "quick", "quick", "long"), CROWD * world.chance.choice((2, 3)))
    for first in range(0, len(new), CROWD):
        world.at(calm_s * world.chance.random(), database.store.push, new[first : first + CROWD])
    return [job.id for job in new]


def _jobs(chance: Random, kinds: Sequence[str], count: int) -> list[NewJob]:
    return [
        NewJob(
            id=f"00000000-0000-7000-8000-{number:012x}",
            kind=chance.choice(kinds),
            priority=chance.randrange(3),
            delay_s=chance.choice((0.0, 0.0, 1.5)) * chance.random(),
        )
        for number in range(1, count + 1)
    ]


def _unconfirmed(node: Node) -> bool:
    supervisor = node.supervisor
    return supervisor.alive and supervisor.state.phase == "running" and bool(supervisor.state.records)


def _watch_waits(
    world: World,
    nodes: list[Node],
    database: Database,
    history: History,
    calm_s: float,
    since_s: dict[tuple[Lease, float], float],
) -> None:
    """Look now and then for what waits though nothing is in its way; a late supervisor has as long from then on.

    That is a due job while a worker idles (a wake was lost), a claim that was not begun (its worker hoards), and one
    in nobody's hands (it was revoked, or its worker is idle or dead, and was not given back). Claims are known by
    how long they may wait, and `since_s` says since when they do.
    """
    now_s = world.now_s
    prompt_s = {node.supervisor.node: node.supervisor.prompt_from_s for node in nodes}
    workers = [worker for node in nodes for worker in node.supervisor.workers]
    idle = {w.holder.node for w in workers if w.is_idle and now_s - prompt_s[w.holder.node] > WAITS_S}
    waiting = [id for id, due_s in database.store.due_since().items() if now_s - due_s > WAITS_S]
    hands = {lease for worker in workers if worker.alive for lease in worker.hands()}
    claims = [
        (lease, WAITS_S if holder.node in idle else BEHIND_S)
        for lease, holder in history.held.items()
        if lease not in history.executions
    ]
    claims += [(lease, BACK_S) for lease in history.held if lease not in hands]
    now_since_s = {claim: since_s.get(claim, now_s) for claim in claims}
    kept = [
        (lease, may_wait_s)
        for (lease, may_wait_s), from_s in now_since_s.items()
        if now_s - max(from_s, prompt_s.get(history.held[lease].node, 0.0)) > may_wait_s
    ]
    if waiting and idle:
        history.broken.append(f"{waiting} waited for {WAITS_S} s though a worker was idle")
    elif kept:
        history.broken.append(f"{kept} held, each for so many seconds, by who does not run them")
    elif not (database.store.is_over and now_s > calm_s):
        world.at(now_s + LOOK_EVERY_S, _watch_waits, world, nodes, database, history, calm_s, now_since_s)
