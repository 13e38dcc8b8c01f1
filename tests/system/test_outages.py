"""Goal: the database may go and come. Method: restart it, and end its sessions, in mid-work."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psycopg

from runtime.edges.embedded import Embedded
from runtime.edges.postgres import PostgresStore
from tests.helpers import databases
from tests.helpers.cut import Cut
from tests.helpers.service import Stage, stage
from tests.helpers.waiting import wait_for

END_SESSIONS = """
select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and pid <> pg_backend_pid() and application_name like 'tenure %'
"""


def done_once(on: Stage, jobs: list[str], within_s: float = 30) -> None:
    states = on.all_ended(within_s=within_s)
    assert states["done"] == len(jobs), states
    starts = on.effects(what="start")
    assert len(starts) == len(jobs)
    assert {start.attempt for start in starts} == {1}


def test_ended_sessions_are_replaced_and_no_process_restarts(on: Stage) -> None:
    service = on.run()
    jobs = on.push_many("nap", 30, seconds=0.2)
    wait_for(lambda: on.effects(what="stop"), lambda stops: len(stops) > 4)
    with psycopg.connect(on.url, autocommit=True) as conn:
        ended = conn.execute(END_SESSIONS).fetchall()
        assert len(ended) >= 3
    done_once(on, jobs)
    assert not service.events("child.exited")


def test_a_restarted_database_is_found_again_and_all_is_done_once(place: Path) -> None:
    server = Embedded(place / "server", bin_dir=databases.bin_dir())
    url = server.open()
    store = PostgresStore(url)
    store.install()
    store.close()
    with stage(url, place) as on:
        service = on.run()
        jobs = on.push_many("nap", 40, seconds=0.2)
        wait_for(lambda: on.effects(what="stop"), lambda stops: len(stops) > 4)
        server.close()  # cuts every connection
        server.open()
        on.store.close()
        with contextlib.suppress(psycopg.OperationalError):
            on.store.counts()
        states = on.all_ended(within_s=30)
        assert states["done"] == len(jobs), states
        assert not service.events("child.exited")
        ended = [view for job in jobs if (view := on.store.status(job)) is not None]
        assert all(view.crashes == 0 for view in ended)
    server.close()


def test_a_wire_that_forwards_nothing_for_a_while_loses_nothing(on: Stage, cut: Cut) -> None:
    service = on.run(url=cut.url)
    jobs = on.push_many("count", 200)
    wait_for(lambda: on.effects(what="stop"), lambda stops: len(stops) > 4)
    cut.stop()
    wait_for(lambda: service.events("scheduler.silent") or on.store.counts().states["queued"] == 0)
    cut.resume()
    states = on.all_ended(within_s=30)
    assert states["done"] == len(jobs), states
    more = on.push("quick")
    on.ended(more, within_s=5)
