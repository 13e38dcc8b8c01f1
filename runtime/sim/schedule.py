"""One schedule: a run of some nodes and jobs, with its faults, wholly made by its seed, and judged at its end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from runtime.model.jobs import NewJob
from runtime.sim.database import Database
from runtime.sim.faults import Faults
from runtime.sim.history import History, Violation
from runtime.sim.node import Node, Setup
from runtime.sim.worker import LIMITS
from runtime.sim.world import World

PATIENCE_S = 90.0  # after the last fault, until when every job has ended
LEASE_S = 2.0
RENEW_EVERY_S = 0.5


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
    setup = Setup(
        workers=chance.choice((1, 2, 2, 3)),
        lease_s=LEASE_S,
        renew_every_s=RENEW_EVERY_S,
        fencing=fencing,
        recycle_jobs=chance.choice((0, 0, 0, 3)),
        until_idle=chance.random() < 0.1,
    )
    nodes = [Node(world, f"node{n}", setup, database, history) for n in range(1, chance.choice((2, 2, 3)) + 1)]
    calm_s = chance.choice((1.0, 3.0, 6.0))
    ids = _push(world, database, calm_s)
    Faults(world, nodes, database, ids).draw(calm_s)
    try:
        world.run(calm_s, lambda: False)
        over = world.run(calm_s + PATIENCE_S, lambda: not database.store.live)
        jobs = [job for id in ids if (job := database.store.status(id)) is not None]
        history.check(jobs, world.now_s)
        problem = None if over else f"not over after {PATIENCE_S} s"
    except Violation as violation:
        problem = str(violation)
    return Outcome(seed, world.events, world.now_s, world.faults, problem, world.trace or [])


def _push(world: World, database: Database, calm_s: float) -> list[str]:
    """Push some jobs at the start and some on the way; their ids."""
    chance = world.chance
    kinds = chance.choice((tuple(LIMITS), ("long",)))
    new = [
        NewJob(
            id=f"00000000-0000-7000-8000-{number:012x}",
            kind=chance.choice(kinds),
            priority=chance.randrange(3),
            delay_s=chance.choice((0.0, 0.0, 1.5)) * chance.random(),
        )
        for number in range(1, chance.choice((2, 5, 8, 14)) + 1)
    ]
    early = chance.randrange(len(new) + 1)
    database.store.push(new[:early])
    for job in new[early:]:
        world.at(calm_s * chance.random(), database.store.push, [job])
    return [job.id for job in new]
