"""How things stand: counts, readiness, nodes and schedules."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest

from runtime.edges.postgres import PostgresStore
from runtime.model.jobs import NewSchedule, NodeView, WorkerView
from tests.cli import rows
from tests.cli.conftest import Tenure


def node(state: str = "running", worker: str = "idle", kinds: Sequence[str] = ()) -> NodeView:
    workers = [
        WorkerView(name="scheduler", pid=10, state="up"),
        WorkerView(name="worker 1", pid=11, state=worker, kind="cli.scale", job="7"),
    ]
    return NodeView(
        id="n1",
        host="box",
        pid=9,
        version="0.1.0",
        state=state,
        workers=workers,
        kinds=list(kinds),
        queues=["default"],
    )


def test_the_overview_counts_all_states_and_the_live_jobs_of_each_queue(
    tenure: Tenure, store: PostgresStore, schema_dsn: str
) -> None:
    rows.done(store)
    rows.crashed(store)
    rows.claimed(store, queue="images")
    tenure("push", "cli.scale", '{"path": "a"}')
    tenure("cancel", tenure("push", "cli.plain").out.strip())

    overview = tenure("status", "--json").json
    assert overview["counts"] == {"queued": 1, "running": 1, "done": 1, "dead": 1, "cancelled": 1}
    [queue] = overview["queues"]
    assert (queue["queue"], queue["kind"], queue["queued"], queue["running"]) == ("images", "cli.scale", 1, 1)
    assert (overview["ready"], overview["nodes"]) == (False, 0)
    assert overview["database_url"] == schema_dsn
    assert "images\tcli.scale\t1\t1\t0\t" in tenure("status").out

    tenure("kick", "cli.tidy")
    kicked = tenure("status", "--json").json["queues"][1]
    assert (kicked["queue"], kicked["kind"], kicked["queued"], kicked["kicked"]) == (
        "upkeep",
        "cli.tidy",
        0,
        1,
    )
    assert "upkeep\tcli.tidy\t0\t0\t1\t" in tenure("status").out


def test_the_password_is_not_shown(tenure: Tenure, schema_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_DATABASE_URL", schema_dsn.replace("tenure@", "tenure:s3cret@"))
    for words in (("status",), ("status", "--json"), ("check",), ("check", "--json")):
        answer = tenure(*words)
        assert "s3cret" not in answer.out + answer.err
        assert ":***@" in answer.out


@pytest.mark.parametrize(
    ("state", "worker", "ready"),
    [
        ("running", "idle", True),
        ("running", "running", True),
        ("unhealthy", "settling", True),
        ("draining", "idle", False),
        ("running", "starting", False),
        ("running", "waiting", False),
    ],
)
def test_ready_is_a_node_that_serves_with_a_living_worker(
    tenure: Tenure, store: PostgresStore, state: str, worker: str, ready: bool
) -> None:
    store.report(node(state, worker))
    assert tenure("status", "--json").json["ready"] is ready
    assert ("not ready" in tenure("status").out) is not ready


def test_a_node_that_has_not_reported_lately_is_lost(
    tenure: Tenure, store: PostgresStore, schema_dsn: str
) -> None:
    store.report(node())
    with psycopg.connect(schema_dsn) as conn:
        conn.execute("update tenure.node set seen = now() - interval '31 seconds'")

    overview = tenure("status", "--json").json
    assert (overview["ready"], overview["nodes"]) == (False, 0)
    assert "\tlost\t" in tenure("nodes").out
    assert tenure("check").status == 0, "a node that is gone is no fault of those that are there"


def test_nodes_shows_what_each_process_is_doing(tenure: Tenure, store: PostgresStore) -> None:
    assert tenure("nodes", "--json").json == []
    store.report(node(worker="running"))

    [shown] = tenure("nodes", "--json").json
    assert (shown["id"], shown["state"], shown["host"]) == ("n1", "running", "box")
    assert shown["workers"][1] == {
        "name": "worker 1", "pid": 11, "state": "running", "kind": "cli.scale", "job": "7",
    }  # fmt: skip
    assert tenure("nodes").out.splitlines()[2] == "n1\tbox\trunning\tworker 1\t11\trunning\tcli.scale\t7"


def test_what_no_node_serves_is_shown(tenure: Tenure, store: PostgresStore) -> None:
    store.report(node(kinds=["cli.plain", "cli.scale"]))
    tenure("push", "cli.plain")
    tenure("push", "cli.scale", '{"path": "a"}', "--after", "1h")
    assert tenure("status", "--json").json["unserved"] == []
    assert "unserved" not in tenure("status").out

    tenure("push", "cli.scale", '{"path": "a"}')
    [one] = tenure("status", "--json").json["unserved"]
    assert (one["kind"], one["queue"], one["queued"]) == ("cli.scale", "images", 2)
    assert list(one) == ["kind", "queue", "queued", "oldest_due"]
    assert "cli.scale\timages\t2\t" in tenure("status").out.split("unserved", 1)[1]


def test_schedules_shows_what_recurs(tenure: Tenure, store: PostgresStore) -> None:
    store.schedule(
        NewSchedule(name="nightly", kind="cli.plain", spec='{"type":"cron","expression":"0 3 * * *"}')
    )
    [shown] = tenure("schedules", "--json").json
    assert (shown["name"], shown["kind"], shown["spec"]["expression"]) == (
        "nightly",
        "cli.plain",
        "0 3 * * *",
    )
    line = tenure("schedules").out.splitlines()[1]
    assert line.startswith("nightly\tcli.plain\tdefault\t0 3 * * * (UTC)\tskip\tcatch_up\tdue\t")
    assert line.count("03:00 UTC") == 4, "and the first, which is due now"


def test_a_schedule_is_paused_resumed_run_and_removed(tenure: Tenure, store: PostgresStore) -> None:
    spec = '{"type":"cron","expression":"0 3 * * *"}'
    store.schedule(NewSchedule(name="nightly", kind="cli.plain", spec=spec, overlap="skip"))
    assert tenure("schedules", "pause", "nightly").out == "paused\n"
    assert tenure("schedules", "--json").json[0]["paused"] is True
    assert tenure("schedules", "resume", "nightly", "--json").json == {"name": "nightly", "state": "resumed"}
    assert tenure("schedules", "--json").json[0]["paused"] is False

    assert store.status(tenure("schedules", "run", "nightly").out.strip()) is not None
    answer = tenure("schedules", "run", "nightly")
    assert (answer.status, answer.out, answer.err) == (1, "null\n", ""), "its last run is on"

    assert tenure("schedules", "remove", "nightly").out == "removed\n"
    assert tenure("schedules", "--json").json == []
    for verb in ("pause", "resume", "remove", "run"):
        answer = tenure("schedules", verb, "nightly")
        assert (answer.status, answer.out, answer.err) == (1, "", "tenure: no schedule nightly\n")
    assert tenure("schedules", "paint", "nightly").status == 2
