"""The workloads: what is measured, and how. One function each; `WORKLOADS` has their sizes and cases."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier

from bench import jobs, machine
from bench.adapter import Base, Row
from bench.figures import percentiles
from bench.service import Failed, Service, TooSlow, drained, server_cpu_s, span

PRODUCERS = 8
SHORT_MS, LONG_MS = 5, 2000


def drain(product: Base, case: str, n: int) -> Row:
    """n no-op jobs wait, then the service of two workers is started: jobs/s from the first job's start to the
    last one's end. "analyzed": with an ANALYZE after filling, "unanalyzed": without.
    """
    product.fresh()
    product.open()
    product.fill("noop", n)
    if case == "analyzed":
        product.analyze()
    with Service(product) as service:
        return drained(service, n)


def push(product: Base, case: str, n: int) -> Row:
    """Pushes/s of one client without workers. "one": a tenth of n one at a time, each on disk before the next;
    "many": n by the batch API (Tenure: one push_many, which returns the ids).
    """
    product.fresh()
    product.open()
    call, n = (product.push_many, n) if case == "many" else (product.push_each, n // 10)
    call("noop", 50)
    start_s = time.perf_counter()
    call("noop", n)
    return {"pushes_per_s": n / (time.perf_counter() - start_s)}


def parallel(product: Base, case: str, n: int) -> Row:
    """n pushes one at a time of 8 processes at once, pushes/s. "idle": into a queue that the idle service beside
    them does not serve; "busy": into its own, while 25 ms jobs that come first keep both workers busy. "quiet":
    the same statements without notifications, for in the producers' sessions a function that does nothing, first in
    the search path, stands before pg_notify.
    """
    busy, quiet = case.startswith("busy"), case.endswith("quiet")
    product.fresh()
    fork = get_context("fork")
    barrier = fork.Barrier(PRODUCERS + 1)
    producers = [
        fork.Process(
            target=_produce, args=(product, "" if busy else "elsewhere", quiet, n // PRODUCERS, barrier)
        )
        for _ in range(PRODUCERS)
    ]
    product.install_quiet()
    product.open()
    with Service(product, product.commands(queues="default")) as service:
        service.warm()
        for one in producers:
            one.start()
        if busy:
            product.fill("burn", max(100, n // 4))
            service.wait_jobs(jobs.count() + 2)
        barrier.wait()
        start_s = time.perf_counter()
        barrier.wait()
        took_s = time.perf_counter() - start_s
        for one in producers:
            one.join()
    return {"pushes_per_s": n / took_s}


def _produce(product: Base, queue: str, quiet: bool, n: int, barrier: Barrier) -> None:
    push = product.pusher(queue, quiet=quiet)
    for _ in range(10):
        push()
    barrier.wait(60.0)
    for _ in range(n):
        push()
    barrier.wait(600.0)


def latency(product: Base, case: str, n: int) -> Row:
    """An idle service; another process pushes a job each 25 ms. Time from before the push call to the first line of
    the handler; `push_ms` is the call alone, `beyond_push_ms` the difference of the medians.
    """
    del case
    product.fresh()
    product.open()
    with Service(product) as service:
        service.warm()
        pushes_ms = []
        for _ in range(n):
            time.sleep(0.025)
            sent = time.time_ns()
            product.push("lat", sent)
            pushes_ms.append((time.time_ns() - sent) / 1e6)
        service.wait_jobs(4 + n, 60.0)
        found = percentiles([(one.start - one.note) / 1e6 for one in jobs.records() if one.note])
    push_ms = statistics.median(pushes_ms)
    return {**found, "push_ms": push_ms, "beyond_push_ms": found["p50_ms"] - push_ms}


def cpu(product: Base, case: str, n: int) -> Row:
    """n jobs of about 25 ms of pure-Python CPU wait. Efficiency: the time of two ideal cores, by the median time of
    the same loop alone in one process before and after, over the time from first start to last end. The clock of a
    shared machine moves by a third meanwhile; so `job_cpu` is compared, with that of two bare processes (ref).
    """
    del case
    product.fresh()
    product.open()
    product.fill("burn", n)
    product.analyze()
    singles_s = single_burns_s()
    with Service(product) as service:
        service.wait_jobs(n)
    return burned(n, singles_s)


def burned(n: int, singles_s: list[float]) -> Row:
    """The row of n jobs that have run, by their records; `singles_s`: the single loops before."""
    found = jobs.records()
    first, last = span(found)
    return efficiency(n, last - first, singles_s + single_burns_s()) | shares(found)


def shares(records: list[jobs.Record]) -> Row:
    """Of the time of two cores from first start to last end: `in_jobs`, while a worker was between the first and the
    last line of a job; `job_cpu`, what the jobs had as CPU time, without what others took from them meanwhile.
    """
    first, last = span(records)
    of_both_ns = 2 * (last - first) * 1e9
    return {
        "in_jobs": sum(one.end - one.start for one in records) / of_both_ns,
        "job_cpu": sum(one.note for one in records) / of_both_ns,
    }


def single_burns_s() -> list[float]:
    found = []
    for _ in range(50):
        start_s = time.perf_counter()
        jobs.burn_once()
        found.append(time.perf_counter() - start_s)
    return found


def efficiency(n: int, took_s: float, singles_s: list[float]) -> Row:
    single_s = statistics.median(singles_s)
    return {"efficiency": single_s * n / 2 / took_s, "wall_s": took_s, "single_ms": single_s * 1000}


def mixed(product: Base, case: str, n: int) -> Row:
    """n sleeping jobs of 5 ms and n / 50 of 2 s, shuffled. Makespan over that of the best possible schedule of two
    workers, half of the sum. A worker that starts the last long job late may cost 4 % of it at n = 1,000.
    """
    del case
    lengths_ms = [SHORT_MS] * n + [LONG_MS] * (n // 50)
    random.Random(4).shuffle(lengths_ms)
    product.fresh()
    product.open()
    for ms in lengths_ms:
        product.push("nap", ms)
    product.analyze()
    with Service(product) as service:
        service.wait_jobs(len(lengths_ms))
    first, last = span(jobs.records())
    best_s = max(sum(lengths_ms) / 2, LONG_MS) / 1000
    return {"over_best": (last - first) / best_s, "makespan_s": last - first, "best_s": best_s}


def backlog(product: Base, case: str, n: int) -> Row:
    """jobs/s of n no-ops with 100 n ("deep") or 1,000 n ("deeper", with --large) queued behind and, for products
    that can fill them in, as many finished, against none ("bare"); after VACUUM ANALYZE and a checkpoint.
    """
    behind = {"bare": 0, "deep": 100, "deeper": 1000}[case] * n
    warm = n // 10
    product.fresh()
    product.open()
    product.fill("noop", warm + n + behind)
    product.fill_finished(behind)
    product.analyze(vacuum=True)
    with Service(product) as service:
        service.wait_jobs(warm + n)
    starts = sorted(one.start for one in jobs.records())[warm : warm + n]
    return {"jobs_per_s": n / (starts[-1] - starts[0]) * 1e9}


def snapshot(product: Base, case: str, n: int) -> Row:
    """Drain for n seconds while another session holds a snapshot ("held"), and for n seconds after its release; or n
    seconds without ("clean"). The jobs of each second are counted; `last_per_s` is the last sixth of the first n.
    """
    held = case == "held"
    product.fresh()
    product.open()
    total = product.rate_max * n * 2
    product.fill("noop", total)
    product.analyze(vacuum=True)
    series: list[int] = []
    with ExitStack() as stack:
        holder = stack.enter_context(product.connect())
        if held:
            holder.autocommit = False
            holder.execute("set transaction isolation level repeatable read")
            holder.execute("select count(*) from pg_class")
        service = stack.enter_context(Service(product))
        service.wait_jobs(1, 60.0)
        start_s, seen = time.monotonic(), jobs.count()
        for second in range(1, (2 if held else 1) * n + 1):
            time.sleep(max(0.0, start_s + second - time.monotonic()))
            series.append(jobs.count() - seen)
            seen += series[-1]
            if second == n:
                holder.close()
    if seen >= total:
        raise Failed(f"all {total:,} jobs were done in less time; raise rate_max of the adapter")
    part = max(1, n // 6)
    row: Row = {
        "jobs_per_s": sum(series[:n]) / n,
        "last_per_s": sum(series[n - part : n]) / part,
        "series": series,
    }
    return row | ({"after_per_s": sum(series[n:]) / n} if held else {})


def due(product: Base, case: str, n: int) -> Row:
    """n no-ops due at one future moment, the service idle until then. How late the first one starts, jobs/s from
    there on, and the transactions of the whole database and CPU a job, which a herd would raise.
    """
    del case
    product.fresh()
    product.open()
    with Service(product) as service:
        service.warm()
        before = jobs.count()
        moment = datetime.now(UTC) + timedelta(seconds=3 + n / 5000)
        product.fill_due("noop", n, moment)
        product.analyze()
        left_s = (moment - datetime.now(UTC)).total_seconds()
        if left_s < 1.0:
            raise Failed("filling took too long")
        time.sleep(left_s - 0.5)
        cpu_s = service.cpu_s() + server_cpu_s(product)
        transactions = transactions_of(product)
        service.wait_jobs(before + n)
        cpu_s = service.cpu_s() + server_cpu_s(product) - cpu_s
        service.wait(lambda: product.unfinished() == 0, 60.0, "all settled")
        time.sleep(1.5)  # sessions report at most once a second
        transactions = transactions_of(product) - transactions
    first, last = span(jobs.records()[before:])
    return {
        "first_late_ms": (first - moment.timestamp()) * 1000,
        "jobs_per_s": n / (last - first),
        "transactions_a_job": transactions / n,
        "cpu_us_a_job": cpu_s / n * 1e6,
    }


def transactions_of(product: Base) -> int:
    with product.admin() as conn:
        statement = "select xact_commit + xact_rollback from pg_stat_database where datname = %s"
        [(found,)] = conn.execute(statement, ("bench_" + product.name,)).fetchall()
    return int(found)


def crash(product: Base, case: str, n: int) -> Row:
    """n times: a job runs, its process is killed by SIGKILL; time from the kill to the start of its next attempt.
    A product that needs more than n seconds for it is not waited for: `recovered` says how often it was quicker.
    """
    del case
    taken_ms: list[float] = []
    product.fresh()
    product.open()
    with Service(product) as service:
        service.warm()
        try:
            for number in range(1, n + 1):
                taken_ms.append(_kill(service, number, within_s=max(5.0, n))[1])  # noqa: PERF401 - some may be there
        except TooSlow:
            pass
    return {**(percentiles(taken_ms) if taken_ms else {}), "recovered": len(taken_ms)}


def _kill(service: Service, number: int, within_s: float) -> tuple[int, float]:
    """Kill the process of a running job: when that was (ns), and milliseconds until the job began again."""

    def starts() -> list[jobs.Record]:
        return [one for one in jobs.records() if one.note == number]

    time.sleep(0.5)  # both workers are up again
    service.product.push("crash", number)
    [victim] = service.wait(starts, 30.0, "the job began")
    time.sleep(0.3)
    killed = time.time_ns()
    os.kill(victim.pid, signal.SIGKILL)
    service.wait(lambda: len(starts()) > 1, within_s, "the job began again")
    return killed, (starts()[1].start - killed) / 1e6


def replacement(product: Base, case: str, n: int) -> Row:
    """n times: a worker with a running job is killed by SIGKILL; time until its replacement is ready, by the log's
    `child.ready`. The workers' handlers import NumPy.
    """
    del case
    product.fresh()
    product.open()
    taken_ms = []
    with Service(product, product.commands(handlers="bench.peers.tenure_numpy")) as service:
        service.warm()

        def ready_ms(since: int) -> float | None:
            for line in service.lines("child.ready"):
                at = datetime.fromisoformat(json.loads(line)["at"]).timestamp()
                if at * 1e9 > since:
                    return at * 1000 - since / 1e6
            return None

        for number in range(1, n + 1):
            killed, _ = _kill(service, number, within_s=30.0)
            taken_ms.append(service.wait(lambda since=killed: ready_ms(since), 30.0, "a replacement"))
    return percentiles(taken_ms)


def crowd(product: Base, case: str, n: int) -> Row:
    """Jobs/s of n no-ops, and of n / 10 jobs that sleep 10 ms, with 1 node of 2 workers ("few") or 4 nodes of 8
    ("crowd") on one database; and the most connections that they had, less a worker each, a node.
    """
    nodes, workers = (4, 8) if case == "crowd" else (1, 2)
    naps = n // 10
    product.fresh()
    product.open()
    own = connections_of(product)
    with Service(product, product.commands(workers=workers) * nodes) as service:
        service.wait(lambda: len(service.lines("child.ready")) == nodes * (workers + 1), 60.0, "all ready")
        product.fill("noop", n)
        row = drained(service, n)
        product.fill_naps(naps, 10)
        service.wait_jobs(n + naps)
        connections = connections_of(product) - own
    first, last = span(jobs.records()[n:])
    beyond = (connections - nodes * workers) / nodes
    return {
        "naps_per_s": naps / (last - first),
        "noops_per_s": row["jobs_per_s"],
        "beyond_workers_a_node": beyond,
        "connections": connections,
    }


def connections_of(product: Base) -> int:
    return product.scalar("select count(*) from pg_stat_activity where datname = current_database()")


def idle(product: Base, case: str, n: int) -> Row:
    """n idle seconds after a few jobs: transactions/s by pg_stat_database, and CPU, in percent of a core, of all
    processes of the service and of the server's processes. Autovacuum is off meanwhile: its transactions, 2 to 100 a
    minute in a new database, would be counted as the product's.
    """
    del case
    product.fresh()
    product.open()
    with Service(product) as service:
        service.warm()
        product.close()
        product.analyze(vacuum=True)
        with without_autovacuum(product):
            time.sleep(11.0)  # an idle session reports its last transactions after 10 s
            start_s, transactions = time.monotonic(), transactions_of(product)
            service_s, server_s = service.cpu_s(), server_cpu_s(product)
            time.sleep(n)
            took_s = time.monotonic() - start_s
            service_pct = (service.cpu_s() - service_s) / took_s * 100
            server_pct = (server_cpu_s(product) - server_s) / took_s * 100
            transactions = transactions_of(product) - transactions
    return {
        "transactions_per_s": transactions / took_s,
        "cpu_pct": service_pct + server_pct,
        "service_cpu_pct": service_pct,
        "server_cpu_pct": server_pct,
    }


@contextmanager
def without_autovacuum(product: Base) -> Iterator[None]:
    with product.admin() as conn:
        try:
            conn.execute("alter system set autovacuum = off")
            conn.execute("select pg_reload_conf()")
            yield
        finally:
            conn.execute("alter system reset autovacuum")
            conn.execute("select pg_reload_conf()")


TICKERS = 20


def ticks(product: Base, case: str, n: int) -> Row:
    """n seconds of schedules that each tick once a second, with a no-op as their job: the CPU time of all processes of
    the service and of the server's processes, for one tick and its job.
    """
    del case
    product.fresh()
    product.open()
    with Service(product) as service:
        service.warm()
        for number in range(TICKERS):
            product.schedule_each_second(f"ticker-{number}")
        time.sleep(2.0)
        ran, service_s, server_s = len(jobs.records()), service.cpu_s(), server_cpu_s(product)
        time.sleep(n)
        service_s, server_s = service.cpu_s() - service_s, server_cpu_s(product) - server_s
        count = len(jobs.records()) - ran
        product.close()
    return {
        "ticks": count,
        "service_us_a_tick": service_s / count * 1e6,
        "server_us_a_tick": server_s / count * 1e6,
    }


def memory(product: Base, case: str, n: int) -> Row:
    """Proportional set size after n no-ops, idle: of the largest process that ran jobs, and of the whole service
    without the database server.
    """
    del case
    product.fresh()
    product.open()
    with Service(product) as service:
        service.warm(n)
        sizes = {pid: machine.pss_mib(pid) for pid in service.pids()}
    workers = {one.pid for one in jobs.records()} & set(sizes)
    return {
        "worker_pss_mib": max(sizes[pid] for pid in workers),
        "service_pss_mib": sum(sizes.values()),
        "processes": len(sizes),
    }


def payloads(product: Base, case: str, n: int) -> Row:
    """n jobs whose payload and result are a text of 1 MiB: pushed one at a time, then run by two workers, then the
    results read; jobs/s over the three times together. The reference does the same in bare psycopg: inserts, two
    processes that read and write back, reads.
    """
    del case
    text = random.Random(15).randbytes(512 * 1024).hex()
    product.fresh()
    product.open()
    start_s = time.perf_counter()
    ids = [product.push_echo(text) for _ in range(n)]
    pushed_s = time.perf_counter() - start_s
    with Service(product) as service:
        service.wait_jobs(n)
        service.wait(lambda: product.unfinished() == 0, 60.0, "all settled")
        settled_s = time.time()
    run_s = settled_s - span(jobs.records())[0]
    start_s = time.perf_counter()
    assert all(product.result(id) == text for id in ids)
    read_s = time.perf_counter() - start_s
    return {
        "jobs_per_s": n / (pushed_s + run_s + read_s),
        "push_s": pushed_s,
        "run_s": run_s,
        "read_s": read_s,
    }


@dataclass(frozen=True)
class Workload:
    code: str
    run: Callable[[Base, str, int], Row]
    n: int
    quick: int  # n for --quick
    cases: tuple[str, ...] = ("",)
    large: tuple[str, ...] = ()  # cases for --large only
    reps: int = 3

    @property
    def name(self) -> str:
        return self.run.__name__


WORKLOADS = [
    Workload("W1", drain, 20_000, 1000, ("analyzed", "unanalyzed")),
    Workload("W2", push, 50_000, 2000, ("one", "many")),
    Workload("W3", parallel, 8_000, 160, ("idle", "idle quiet", "busy", "busy quiet")),
    Workload("W4", latency, 200, 20),
    Workload("W5", cpu, 400, 20),
    Workload("W6", mixed, 1000, 50),
    Workload("W7", backlog, 5000, 100, ("bare", "deep"), ("deeper",)),
    Workload("W8", snapshot, 60, 1, ("held", "clean"), reps=1),
    Workload("W9", due, 50_000, 500),
    Workload("W10", crash, 30, 2, reps=1),
    Workload("W11", replacement, 10, 2),
    Workload("W12", crowd, 20_000, 1000, ("few", "crowd")),
    Workload("W13", idle, 60, 3, reps=1),
    Workload("W14", memory, 8, 4),
    Workload("W15", payloads, 1000, 10),
    Workload("W16", ticks, 20, 2, reps=1),
]
