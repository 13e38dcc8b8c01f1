"""The driver of the benchmark; see `scripts/bench/run --help`."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from bench import jobs, machine, report, servers
from bench.environments import ROOT, Unavailable, environment, home
from bench.goals import Row, judge
from bench.peers import PEERS
from bench.workloads import WORKLOADS, Workload

RESULTS = Path(__file__).parent / "RESULTS.md"
PLOT = Path(__file__).parent / "snapshot.png"
BURN_S = 0.025
QUIET_PCT = 2.0  # of the machine may others use before a run begins
QUIET_WITHIN_S = 60.0
RUN_WITHIN_S = 3600.0


def parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench/run",
        description="Measure Tenure beside other queues, on a private PostgreSQL, and render RESULTS.md.",
        epilog="Environments, servers and all rows (results.jsonl) are kept in BENCH_HOME. Workloads: "
        + ", ".join(f"{each.code} {each.name}" for each in WORKLOADS),
    )
    others = ",".join(name for name in PEERS if name != "tenure")
    parser.add_argument(
        "--peers", default=None, help=f"besides Tenure, of {others}; default: all, quick: pgqueuer,ref"
    )
    parser.add_argument("--only", default="", metavar="W1,drain,…", help="these workloads, by number or name")
    parser.add_argument("--reps", type=int, help="repetitions, in turns; default: as each workload says")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, once: does all work? RESULTS.md stays"
    )
    parser.add_argument("--large", action="store_true", help="also with millions of jobs waiting")
    parser.add_argument("--check", action="store_true", help="exit 1 and name each goal that is missed")
    asked = parser.parse_args(words)
    default = "pgqueuer,ref" if asked.quick else others
    asked.peers = ["tenure", *filter(None, (default if asked.peers is None else asked.peers).split(","))]
    if unknown := set(asked.peers) - set(PEERS):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    only = set(filter(None, asked.only.split(",")))
    if unknown := only - {name for each in WORKLOADS for name in (each.code, each.name)}:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}")
    asked.works = [each for each in WORKLOADS if not only or only & {each.code, each.name}]
    return asked


def main() -> int:
    asked = parse(sys.argv[1:])
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM)
    )  # so that the servers are stopped
    place = home()
    (place / "logs").mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    with ExitStack() as stack:
        lock = stack.enter_context((place / "lock").open("w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another benchmark runs in {place}", file=sys.stderr)
            return 1
        pythons = _environments(asked.peers)
        surroundings = _surroundings(place, pythons, stack)
        common: Row = {
            "run": time.time_ns(),
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "command": report.command(sys.argv[1:]),
            "machine": _machine(surroundings["BENCH_PG"]),
            "large": asked.large,
        }
        print(common["machine"], flush=True)
        log = stack.enter_context((place / ("quick.jsonl" if asked.quick else "results.jsonl")).open("a"))
        for work, case, peer, rep in _turns(asked, list(pythons)):
            n = work.quick if asked.quick else work.n
            row = common | {"work": work.name, "case": case, "peer": peer, "rep": rep, "n": n}
            row |= _run(row, pythons[peer], surroundings, wait=not asked.quick)
            print(report.line(row), flush=True)
            rows.append(row)
            log.write(json.dumps(row) + "\n")
            log.flush()
    _render(place, rows, quick=asked.quick)
    verdicts = judge(rows, [work.name for work in asked.works], large=asked.large)
    print("\n" + report.goals_table(verdicts))
    missed = report.missed(verdicts)
    print(
        "\n" + "\n".join(missed) if missed else "\nall goals are met",
        file=sys.stderr if asked.check else sys.stdout,
    )
    return 1 if asked.check and missed else 0


def _turns(asked: argparse.Namespace, names: list[str]) -> Iterator[tuple[Workload, str, str, int]]:
    """Each run: of a workload, all cases and products take turns in every repetition."""
    for work in asked.works:
        for rep in range(asked.reps or (1 if asked.quick else work.reps)):
            for case in work.cases + (work.large if asked.large else ()):
                for name in names:
                    if work.name in PEERS[name].works.split():
                        yield work, case, name, rep


def _environments(names: list[str]) -> dict[str, Path]:
    """The Python of each product that can be measured here; the others are named and left out."""
    found = {}
    for name in names:
        try:
            if PEERS[name].store == "redis":
                servers.need_redis()
            found[name] = environment(name)
        except Unavailable as problem:
            print(f"left out: {name}: {problem}", file=sys.stderr)
    return found


def _surroundings(place: Path, pythons: dict[str, Path], stack: ExitStack) -> dict[str, str]:
    """Start the servers; the environment of each run."""
    loops = 100_000
    fastest_s = min(_timed(loops) for _ in range(9))
    found = {
        "BENCH_HOME": str(place),
        "BENCH_RECORDS": str(place / "records"),
        "BENCH_BURN_LOOPS": str(round(loops * BURN_S / fastest_s)),
        "BENCH_PG": stack.enter_context(servers.postgres(place)),
        "PYTHONPATH": str(ROOT / "scripts"),
        "PYTHONDONTWRITEBYTECODE": "",
    }
    # As pip has done for the other products: one that compiles itself at each start is larger and slower for it.
    compiled = [
        str(pythons["tenure"]),
        "-m",
        "compileall",
        "-q",
        str(ROOT / "runtime"),
        str(ROOT / "scripts" / "bench"),
    ]
    subprocess.run(compiled, env=os.environ | found, check=True)
    if any(PEERS[name].store == "redis" for name in pythons):
        found["BENCH_REDIS"] = stack.enter_context(servers.redis(place))
    return found


def _timed(loops: int) -> float:
    start_s = time.perf_counter()
    jobs.burn_once(loops)
    return time.perf_counter() - start_s


def _machine(url: str) -> str:
    """Versions and settings that hold for all runs, in one line."""
    with psycopg.connect(url.format("postgres")) as conn:
        names = ("server_version", "shared_buffers", "fsync", "synchronous_commit", "full_page_writes")
        shown = {name: conn.execute("select current_setting(%s)", (name,)).fetchone()[0] for name in names}
    version = shown.pop("server_version")
    cpu = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "?"
    )
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    settings = ", ".join(f"{name} {value}" for name, value in shown.items())
    return (
        f"{os.cpu_count()} cores ({cpu}), Linux {platform.release()}, PostgreSQL {version.split()[0]} ({settings}; "
        f"loopback TCP), Tenure at commit {commit.stdout.strip() or 'unknown'}"
    )


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _run(row: Row, python: Path, surroundings: dict[str, str], *, wait: bool) -> Row:
    """Measure once, in a process of its own."""
    if wait:
        _wait_quiet()
    variant = PEERS[row["peer"]].variant(row["work"])
    words = [str(python), "-m", "bench.one", row["peer"], variant, row["work"], row["case"], str(row["n"])]
    others, start_s = machine.foreign(os.getpid()), time.monotonic()
    found = _measured(words, os.environ | surroundings)
    took_s = time.monotonic() - start_s
    foreign_pct = machine.foreign_cpu_s(others, os.getpid()) / took_s / (os.cpu_count() or 1) * 100
    load = os.getloadavg()[0]
    return found | {"variant": variant, "foreign_cpu_pct": foreign_pct, "load": load, "took_s": took_s}


def _measured(words: list[str], surroundings: dict[str, str]) -> Row:
    """The row that a run prints. Nothing of it is left behind, however it ends."""
    place = surroundings["BENCH_HOME"]
    process = subprocess.Popen(
        words, env=surroundings, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        said, complained = process.communicate(timeout=RUN_WITHIN_S)
    except subprocess.TimeoutExpired:
        return {"failed": f"not within {RUN_WITHIN_S:g} s"}
    finally:
        machine.kill_family([process.pid])
    return json.loads(said.splitlines()[-1]) if process.returncode == 0 else {"failed": _last(complained)}


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["it said nothing"])[-1]


def _wait_quiet() -> None:
    """Begin after a second in which the others left the machine alone, if there is one soon."""
    deadline_s = time.monotonic() + QUIET_WITHIN_S
    while time.monotonic() < deadline_s:
        before = machine.foreign(os.getpid())
        time.sleep(1.0)
        if machine.foreign_cpu_s(before, os.getpid()) / (os.cpu_count() or 1) * 100 <= QUIET_PCT:
            return


def _render(place: Path, rows: list[Row], *, quick: bool) -> None:
    names = [work.name for work in WORKLOADS]
    if quick:
        (place / "quick.md").write_text(report.results(rows, names))
        report.plot(rows, place / "quick.png")
        return
    rows = [json.loads(line) for line in _lines(str(place / "results.jsonl"))]
    RESULTS.write_text(report.results(rows, names))
    report.plot(rows, PLOT)


if __name__ == "__main__":
    sys.exit(main())
