"""RESULTS.md and the plot, from the rows of the runs. Pure, except that `plot` writes a file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from bench.figures import number, spread
from bench.goals import Row, Verdict, judge

HEADER = """\
# Measured

Made by `scripts/bench/run`; do not edit. What each workload measures, and how, is told in `workloads.py`. Medians,
with [lowest to highest] when there were several runs; products took turns in each. Ratios were taken run by run.
`*`: other processes used more than 5 % of the machine meanwhile.
"""
BUSY_PCT = 5.0
NOT_FIGURES = {
    "run",
    "work",
    "case",
    "peer",
    "variant",
    "rep",
    "n",
    "version",
    "python",
    "settings",
    "series",
}
NOT_FIGURES |= {"foreign_cpu_pct", "load", "took_s", "failed", "command", "machine", "date", "large"}


def latest(rows: Sequence[Row]) -> list[Row]:
    """Of each workload the rows of its last run: a run of a few workloads leaves the others as they were."""
    last = {row["work"]: row["run"] for row in rows}
    return [row for row in rows if row["run"] == last[row["work"]]]


def results(rows: Sequence[Row], works: Sequence[str]) -> str:
    """The whole page; `works` in the order of its sections."""
    found = {work: [row for row in latest(rows) if row["work"] == work] for work in works}
    found = {work: mine for work, mine in found.items() if mine}
    verdicts = [
        verdict
        for work, mine in found.items()
        for verdict in judge(mine, [work], large=any(row["large"] for row in mine))
    ]
    parts = [HEADER, "## Goals\n", goals_table(verdicts)]
    for work, mine in found.items():
        first = mine[0]
        parts.append(
            f"\n## {work}\n\n{first['date']}, n = {first['n']:,}, `{first['command']}`\n\n{first['machine']}\n"
        )
        parts.append(table(mine))
    return "\n".join(parts) + "\n"


def goals_table(verdicts: Sequence[Verdict]) -> str:
    lines = ["| goal | measured | beside | |", "| --- | --- | --- | --- |"]
    lines += [
        f"| {verdict.goal.says} | {_measured(verdict)} | {verdict.beside} | {'met' if verdict.met else 'MISSED'} |"
        for verdict in verdicts
    ]
    return "\n".join(lines)


def _measured(verdict: Verdict) -> str:
    return spread(verdict.values) if verdict.values else "not measured"


def missed(verdicts: Sequence[Verdict]) -> list[str]:
    """A line for each goal that is not reached."""
    return [
        f"missed: {verdict.goal.says}: {_measured(verdict)}"
        + (f" (beside {verdict.beside})" if verdict.beside else "")
        for verdict in verdicts
        if not verdict.met
    ]


def table(rows: Sequence[Row]) -> str:
    """One line a case and product, one column a figure."""
    figures = list(dict.fromkeys(name for row in rows for name in row if name not in NOT_FIGURES))
    head = ["case", "product", "runs", *figures, "foreign CPU %", "load", "settings"]
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for case, peer in dict.fromkeys((row["case"], row["peer"]) for row in rows):
        runs = [row for row in rows if (row["case"], row["peer"]) == (case, peer)]
        good = [row for row in runs if "failed" not in row]
        foreign = [row["foreign_cpu_pct"] for row in runs]
        cells = [
            case,
            f"{peer} {runs[0].get('version', '')}{' *' if max(foreign) > BUSY_PCT else ''}",
            f"{len(good)}/{len(runs)}",
            *(_cell([row[name] for row in good if row.get(name) is not None]) for name in figures),
            spread(foreign),
            spread([row["load"] for row in runs]),
            f"{runs[0].get('settings', '')}; Python {runs[0].get('python', '')}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
        lines += [f"\n{peer} {case}: {row['failed']}\n" for row in runs if "failed" in row]
    return "\n".join(lines)


def _cell(values: Sequence[float]) -> str:
    return spread(values) if values else "-"


def line(row: Row) -> str:
    """One run, for the terminal."""
    figures = row.get("failed") or ", ".join(
        f"{name} {number(value)}" for name, value in row.items() if name not in NOT_FIGURES
    )
    what = " ".join(filter(None, (row["work"], row["case"])))
    return (
        f"{what:<18} {row['peer']} ({row['variant']}) {row['rep'] + 1}: {figures}"
        f" [foreign {row['foreign_cpu_pct']:.1f} %, load {row['load']:.1f}]"
    )


def command(words: Sequence[str]) -> str:
    return shlex.join(["scripts/bench/run", *words])


def plot(rows: Sequence[Row], path: Path) -> None:
    """Jobs of each second while a snapshot is held and after its release, a line a product."""
    held = [
        row
        for row in latest(rows)
        if row["work"] == "snapshot" and row["case"] == "held" and row.get("series")
    ]
    if not held:
        return
    from matplotlib.figure import Figure  # noqa: PLC0415 - heavy, and for this alone

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    for row in {row["peer"]: row for row in held}.values():
        width = 2.5 if row["peer"] == "tenure" else 1.2
        axes.plot(range(1, len(row["series"]) + 1), row["series"], label=row["peer"], linewidth=width)
    axes.axvline(held[0]["n"], color="grey", linestyle="--", linewidth=1)
    axes.annotate(
        " snapshot released", (held[0]["n"], 1), xycoords=("data", "axes fraction"), va="top", color="grey"
    )
    axes.set(
        xlabel="seconds",
        ylabel="jobs in that second",
        title="Draining while another session holds a snapshot",
    )
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
