"""How many jobs to claim at once: as many as will be finished soon.

A batch is about `TARGET_S` of work, by the average duration of late. More would keep outcomes from being known; less
would waste time, since each exchange keeps a worker waiting, 4 ms where all cores are busy. But as long as a burst may
soon be over, other nodes' workers should find some of it: a batch is `TARGET_FIRST_S` after a wait, and from then on a
share of the time since. One slow job among quick ones says little (on a busy machine any job may be off the processor
for a while). What waits behind it, or is left when another worker of the node has nothing to do, is taken back by the
supervisor.
"""

from __future__ import annotations

import msgspec

TARGET_S = 0.25
TARGET_FIRST_S = 0.1
SHARE = 0.25  # what has lasted for so long most likely will last for as long again, but not much longer
LIMIT_MAX = 250  # more gain nothing: an exchange of 100 costs a fifth more a job
GROWTH = 4  # a batch is at most so many times the one before: one quick job proves little
FIRST = 2  # after a wait: with 1 a lone job would seem to leave more, and another worker be woken beside it
WEIGHT = 0.3  # of the newest batch in the average


class Pace(msgspec.Struct, frozen=True):
    """What a worker has seen: the average duration of a job, how many it asked for last, its work since a wait."""

    job_s: float | None = None
    limit: int = 1
    work_s: float = 0.0


def after_batch(pace: Pace, jobs: int, took_s: float) -> Pace:
    """The pace after a batch of `jobs` jobs that took `took_s` seconds."""
    if jobs == 0:
        return pace
    newest_s = took_s / jobs
    job_s = newest_s if pace.job_s is None else (1 - WEIGHT) * pace.job_s + WEIGHT * newest_s
    work_s = pace.work_s + took_s
    target_s = min(max(TARGET_FIRST_S, SHARE * work_s), TARGET_S)
    fitting = int(target_s / max(job_s, target_s / LIMIT_MAX))
    return Pace(job_s, max(1, min(fitting, pace.limit * GROWTH, LIMIT_MAX)), work_s)


def after_wait(pace: Pace) -> Pace:
    """The pace of a worker that had nothing to do: what comes next is most often little, and if not, grows at once."""
    return Pace(pace.job_s, min(pace.limit, FIRST))
