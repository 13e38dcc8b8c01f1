"""The benchmark: its statistics, goals and report; and that a tiny run of it drains Tenure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.databases import Server
from tests.helpers.places import ROOT

sys.path.append(str(ROOT / "scripts"))

from bench import machine
from bench.figures import number, percentiles, spread
from bench.goals import GOALS, Goal, judge
from bench.jobs import RECORD
from bench.peers import PEERS
from bench.report import latest, missed, results
from bench.workloads import WORKLOADS


def _row(peer: str, rep: int, figures: dict[str, Any], **given: Any) -> dict[str, Any]:
    row = {
        "run": 1,
        "work": "drain",
        "case": "analyzed",
        "peer": peer,
        "rep": rep,
        "n": 20,
        "variant": "default",
    }
    row |= {
        "foreign_cpu_pct": 0.5,
        "load": 1.0,
        "took_s": 1.0,
        "date": "2030-01-01",
        "command": "run",
        "machine": "m",
    }
    return row | {"large": False} | figures | given


def _drains(peer: str, *rates: float) -> list[dict[str, Any]]:
    return [_row(peer, rep, {"jobs_per_s": rate}) for rep, rate in enumerate(rates)]


@pytest.mark.parametrize(
    ("n", "p50", "p99"),
    [(1, 1, 1), (2, 1, 2), (100, 50, 99), (101, 51, 100)],
)
def test_percentiles_are_of_the_nearest_rank(n: int, p50: int, p99: int) -> None:
    found = percentiles([float(each) for each in range(n, 0, -1)])
    assert (found["p50_ms"], found["p99_ms"], found["max_ms"]) == (p50, p99, n)


def test_several_runs_show_their_median_and_range() -> None:
    assert spread([3.0, 1.0, 2.0]) == "2 [1 to 3]"
    assert spread([20_000.4]) == "20,000"
    assert [number(each) for each in (0.0123, 12.34, -1234.5)] == ["0.0123", "12.3", "-1,234"]


def test_a_ratio_is_taken_run_by_run_over_the_best_peer_that_was_measured() -> None:
    rows = (
        _drains("tenure", 150, 300, 330) + _drains("pgqueuer", 100, 200, 200) + _drains("oban", 10, 500, 20)
    )

    best, reference = judge(rows, ["drain"], large=False)[0::2][:2]

    assert (best.beside, best.values, best.met) == ("pgqueuer", (1.5, 1.5, 1.65), True)
    assert (reference.values, reference.met) == ((), False), "what was not measured is not met"


def test_a_ratio_over_an_own_case_takes_that_case() -> None:
    figures = {"jobs_per_s": 95.0, "last_per_s": 80.0, "after_per_s": 100.0}
    rows = [_row("tenure", 0, figures, work="snapshot", case="held")]
    rows += [_row("tenure", 0, {"jobs_per_s": 100.0}, work="snapshot", case="clean")]
    assert [verdict.met for verdict in judge(rows, ["snapshot"], large=False)] == [True, False, True]


def test_a_goal_of_at_most_is_met_from_below_and_a_missed_one_is_named() -> None:
    rows = [_row("tenure", 0, {"worker_pss_mib": 13.0, "service_pss_mib": 61.0}, work="memory", case="")]
    assert missed(judge(rows, ["memory"], large=False)) == ["missed: memory, service_pss_mib ≤ 60: 61.0"]


def test_a_workload_run_again_replaces_its_own_rows_only() -> None:
    rows = [*_drains("tenure", 1), *_drains("ref", 2)]
    rows += [_row("tenure", 0, {}, work="cpu", run=2), _row("tenure", 0, {}, run=3)]
    assert [(row["work"], row["run"]) for row in latest(rows)] == [("cpu", 2), ("drain", 3)]


def test_the_page_has_the_goals_first_and_names_what_failed_and_what_was_disturbed() -> None:
    failed = _row("pgqueuer", 0, {"failed": "no server"}, foreign_cpu_pct=30.0)
    rows = [*_drains("tenure", 10, 20), failed]
    page = results(rows, [work.name for work in WORKLOADS])
    assert page.index("## Goals") < page.index("## drain")
    assert "| analyzed | tenure  | 2/2 | 15.0 [10.0 to 20.0] |" in page
    assert "| analyzed | pgqueuer  * | 0/1 | - |" in page
    assert "pgqueuer analyzed: no server" in page


def test_goals_and_peers_name_real_workloads() -> None:
    cases = {work.name: work.cases + work.large for work in WORKLOADS}
    for goal in GOALS:
        assert goal.case in cases[goal.work], goal
        assert not goal.over_case or goal.over_case in cases[goal.work], goal
        assert all(goal.work in PEERS[name].works.split() for name in goal.beside), goal
    for name, peer in PEERS.items():
        assert {*peer.works.split(), *peer.variants} <= set(cases), name
    assert {goal.work for goal in GOALS} == set(cases) - {"ticks"}, "each workload has a goal, but for one"
    assert all(work.run.__doc__ for work in WORKLOADS), "each workload says what it measures"


def test_a_goal_says_what_it_compares() -> None:
    assert Goal("a", "b", "x", 2.0, beside=("ref",)).says == "a b, x over ref ≥ 2"
    assert Goal("a", "", "x", 0.5, at_most=True).says == "a, x ≤ 0.5"


def test_the_cpu_of_others_is_counted_once_also_when_a_family_of_them_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = {10: (1, 100), 11: (10, 50), 12: (11, 30)}
    monkeypatch.setattr(machine, "foreign", lambda own: {10: (1, 100 + 50 + 30 + 7), 13: (1, 5)})
    assert machine.foreign_cpu_s(before, own=0) == pytest.approx((7 + 5) / machine.TICKS_PER_S)


def test_a_tiny_run_drains_tenure(server: Server, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    surroundings = os.environ | {
        "BENCH_HOME": str(tmp_path),
        "BENCH_RECORDS": str(tmp_path / "records"),
        "BENCH_PG": server.url("{}"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "scripts"), str(ROOT)]),
    }
    words = [sys.executable, "-m", "bench.one", "tenure", "default", "drain", "unanalyzed", "20"]
    try:
        done = subprocess.run(words, env=surroundings, capture_output=True, text=True, check=True, timeout=50)
    finally:
        server.execute("drop database if exists bench_tenure with (force)")
    row = json.loads(done.stdout)
    assert row["jobs_per_s"] > 0, row
    assert (tmp_path / "records").stat().st_size == 20 * RECORD.size
