"""The goals as data, and whether rows of one run reach them. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.peers import POSTGRES_PEERS

Row = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """Tenure's `measure` in a case of a workload, or its ratio over another one, must reach `bound`."""

    work: str
    case: str
    measure: str
    bound: float
    at_most: bool = False
    beside: tuple[str, ...] = ()  # over the best of these products in the same case
    over_case: str = ""  # over Tenure's own in this case
    over_measure: str = ""  # if that is another one
    large: bool = False

    @property
    def says(self) -> str:
        what = " ".join(filter(None, (self.work, self.case)))
        if self.beside:
            over = self.beside[0] if len(self.beside) == 1 else "the best Postgres peer"
            what += f", {self.measure} over {over}"
        elif self.over_case:
            what += f", {self.measure} over {self.over_case}"
        else:
            what += f", {self.measure}"
        return f"{what} {'≤' if self.at_most else '≥'} {self.bound:g}"


@dataclass(frozen=True)
class Verdict:
    goal: Goal
    values: tuple[float, ...] = ()  # one a repetition; none: it was not measured
    beside: str = ""  # the product that it was measured against

    @property
    def met(self) -> bool:
        if not self.values:
            return False
        median = statistics.median(self.values)
        return median <= self.goal.bound if self.goal.at_most else median >= self.goal.bound


ALL = POSTGRES_PEERS
GOALS = [
    *(Goal("drain", case, "jobs_per_s", 1.5, beside=ALL) for case in ("analyzed", "unanalyzed")),
    *(Goal("drain", case, "jobs_per_s", 0.4, beside=("ref",)) for case in ("analyzed", "unanalyzed")),
    *(Goal("push", case, "pushes_per_s", 1.0, beside=ALL) for case in ("one", "many")),
    *(Goal("parallel", case, "pushes_per_s", 0.9, over_case=f"{case} quiet") for case in ("idle", "busy")),
    Goal("latency", "", "p50_ms", 1.0, at_most=True, beside=ALL),
    Goal("latency", "", "beyond_push_ms", 1.0, at_most=True),
    Goal("latency", "", "p99_ms", 7.0, at_most=True),
    Goal("cpu", "", "job_cpu", 0.98, beside=("ref",)),
    Goal("mixed", "", "over_best", 1.05, at_most=True),
    Goal("backlog", "deep", "jobs_per_s", 0.9, over_case="bare"),
    Goal("backlog", "deeper", "jobs_per_s", 0.9, over_case="bare", large=True),
    *(
        Goal("snapshot", "held", measure, 0.9, over_case="clean", over_measure="jobs_per_s")
        for measure in ("jobs_per_s", "last_per_s", "after_per_s")
    ),
    Goal("due", "", "first_late_ms", 20.0, at_most=True),
    Goal("crash", "", "p50_ms", 100.0, at_most=True),
    Goal("crash", "", "p99_ms", 500.0, at_most=True),
    Goal("replacement", "", "p99_ms", 300.0, at_most=True),
    Goal("crowd", "crowd", "naps_per_s", 1.0, over_case="few"),
    Goal("crowd", "crowd", "beyond_workers_a_node", 2.0, at_most=True),
    Goal("idle", "", "transactions_per_s", 0.5, at_most=True),
    Goal("idle", "", "cpu_pct", 0.5, at_most=True),
    Goal("memory", "", "worker_pss_mib", 14.0, at_most=True),
    Goal("memory", "", "service_pss_mib", 60.0, at_most=True),
    Goal("payloads", "", "jobs_per_s", 0.8, beside=("ref",)),
]


def judge(rows: Sequence[Row], works: Iterable[str], *, large: bool) -> list[Verdict]:
    """A verdict on each goal of these workloads."""
    asked = set(works)
    return [_verdict(goal, rows) for goal in GOALS if goal.work in asked and (large or not goal.large)]


def _verdict(goal: Goal, rows: Sequence[Row]) -> Verdict:
    """The ratio is taken repetition by repetition: what stood side by side is compared."""
    ours = _values(rows, goal.work, goal.case, "tenure", goal.measure)
    if goal.over_case:
        others = {"": _values(rows, goal.work, goal.over_case, "tenure", goal.over_measure or goal.measure)}
    elif goal.beside:
        others = {name: _values(rows, goal.work, goal.case, name, goal.measure) for name in goal.beside}
    else:
        return Verdict(goal, tuple(ours.values()))
    others = {name: values for name, values in others.items() if values}
    if not others:
        return Verdict(goal)
    best = min if goal.at_most else max
    name = best(others, key=lambda each: statistics.median(others[each].values()))
    shared = [rep for rep in ours if others[name].get(rep)]
    return Verdict(goal, tuple(ours[rep] / others[name][rep] for rep in shared), name)


def _values(rows: Sequence[Row], work: str, case: str, peer: str, measure: str) -> dict[int, float]:
    """By repetition."""
    wanted = (work, case, peer)
    return {
        row["rep"]: row[measure]
        for row in rows
        if (row["work"], row["case"], row["peer"]) == wanted and row.get(measure) is not None
    }
