"""The commands about single jobs, called as functions on a real database."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from runtime.edges.ids import new_id
from runtime.edges.postgres import PostgresStore
from runtime.model.jobs import Holder, Want
from tests.cli import rows
from tests.cli.conftest import Tenure

JOB_KEYS = [
    "id", "kind", "queue", "priority", "state", "code", "due", "payload", "result", "progress", "attempt", "failures",
    "crashes", "interruptions", "unique", "created", "finished", "attempts",
]  # fmt: skip
ATTEMPT_KEYS = [
    "attempt",
    "epoch",
    "node",
    "worker",
    "pid",
    "started",
    "ended",
    "ending",
    "code",
    "error",
    "certificate",
]
CERTIFICATE_KEYS = [
    "verdict", "signal", "exit_code", "cpu_seconds", "peak_memory_bytes", "last_progress", "output_tail", "stack",
]  # fmt: skip


def pushed(store: PostgresStore) -> int:
    return sum(store.counts().states.values())


def test_push_prints_the_id_of_a_job_with_the_settings_of_its_kind(
    tenure: Tenure, store: PostgresStore
) -> None:
    answer = tenure("push", "cli.scale", '{"path": "a.png"}')

    job = store.status(answer.out.strip())
    assert (answer.status, answer.err) == (0, "")
    assert job is not None
    assert (job.kind, job.queue, job.priority, job.state) == ("cli.scale", "images", 3, "queued")
    assert tenure("status", job.id, "--json").json["payload"] == {"path": "a.png", "width": 256, "more": None}


def test_push_as_json_prints_the_id_as_a_string(tenure: Tenure, store: PostgresStore) -> None:
    assert store.status(tenure("push", "cli.plain", "--json").json) is not None


def test_what_push_is_told_goes_before_what_the_kind_says(tenure: Tenure, store: PostgresStore) -> None:
    id = new_id()
    words = ("--priority", "0", "--queue", "urgent", "--id", id.upper(), "--at", "2090-01-31T08:00:00+01:00")
    assert tenure("push", "cli.plain", *words).out.strip() == id
    job = store.status(id)
    assert job is not None
    assert (job.priority, job.queue) == (0, "urgent")
    assert job.due == datetime(2090, 1, 31, 7, tzinfo=UTC)


def test_after_counts_from_the_databases_now(tenure: Tenure, store: PostgresStore) -> None:
    job = store.status(tenure("push", "cli.plain", "--after", "1h30m").out.strip())
    assert job is not None
    assert job.due - job.created == timedelta(minutes=90)


def test_a_taken_unique_key_is_null_and_exit_status_1(tenure: Tenure, store: PostgresStore) -> None:
    assert tenure("push", "cli.plain", "--unique", "one").status == 0
    for words in [(), ("--json",)]:
        answer = tenure("push", "cli.plain", "--unique", "one", *words)
        assert (answer.status, answer.out) == (1, "null\n")
    assert pushed(store) == 1


def test_a_taken_unique_key_is_answered_or_its_job_replaced_on_request(
    tenure: Tenure, store: PostgresStore
) -> None:
    words = ("push", "cli.scale", "--unique", "one", "--json")
    id = tenure(*words, '{"path": "a"}', "--after", "1h").json
    assert tenure(*words, '{"path": "b"}', "--or-existing").json == id
    assert tenure("status", id, "--json").json["payload"]["path"] == "a"
    assert tenure(*words, '{"path": "b"}', "--replace", "--priority", "0").json == id
    job = store.status(id)
    assert job is not None
    assert (job.priority, b'"b"' in bytes(job.payload or b"")) == (0, True)
    assert job.due < datetime.now(UTC) + timedelta(minutes=59)
    want = Want(holder=Holder("n1", 1, 1), limit=1, lease_s=60.0, kinds=("cli.scale",), queues=("*",))
    assert len(store.claim(want)) == 1
    answer = tenure(*words, '{"path": "c"}', "--replace")
    assert (answer.status, answer.json) == (1, None), "a running job is left alone"


def test_pushing_an_id_again_adds_nothing(tenure: Tenure, store: PostgresStore) -> None:
    id = new_id()
    assert [tenure("push", "cli.plain", "--id", id).out.strip() for _ in range(2)] == [id, id]
    assert pushed(store) == 1


def test_a_broken_module_is_a_warning_as_long_as_the_kind_is_known(
    tenure: Tenure, apart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (apart / "cli_broken.py").write_text("print('noise')\nraise OSError('no such library')\n")
    monkeypatch.setenv("TENURE_SERVICE__HANDLERS", "tests.cli.kinds,cli_broken")

    answer = tenure("push", "cli.plain", "--json")
    assert answer.status == 0
    assert isinstance(answer.json, str), "what a module prints is not part of the result"
    assert "cli_broken could not be imported: OSError: no such library" in answer.err

    answer = tenure("push", "no.such")
    assert answer.status == 2
    assert answer.err.count("tenure:") == 1
    for named in ("'no.such'", "cli_broken", "no such library"):
        assert named in answer.err


def test_handlers_are_found_beside_the_configuration_file(
    tenure: Tenure, apart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TENURE_SERVICE__HANDLERS")
    home = apart / "home"
    home.mkdir()
    (home / "tenure.toml").write_text('[service]\nhandlers = ["cli_beside"]\n')
    (home / "cli_beside.py").write_text(
        "from runtime import NO_RETRY, Job, job\n"
        "@job('cli.beside', retry=NO_RETRY)\n"
        "class Beside(Job):\n"
        "    def run(self, ctx): ...\n"
    )
    config = str(home / "tenure.toml")
    assert tenure("push", "cli.beside", "--config", config).status == 0
    sys.modules.pop("cli_beside")


def test_status_as_json_has_exactly_the_promised_keys(tenure: Tenure, store: PostgresStore) -> None:
    job = tenure("status", rows.crashed(store), "--json").json

    assert list(job) == JOB_KEYS
    [attempt] = job["attempts"]
    assert list(attempt) == ATTEMPT_KEYS
    assert list(attempt["certificate"]) == CERTIFICATE_KEYS
    assert (job["state"], attempt["ending"], attempt["certificate"]["signal"]) == ("dead", "crashed", 11)
    assert (attempt["node"], attempt["worker"], attempt["pid"]) == ("n1", 2, 4711)
    for when in (job["due"], job["created"], job["finished"], attempt["started"], attempt["ended"]):
        assert datetime.fromisoformat(when).tzinfo is not None

    [attempt] = tenure("status", rows.failed(store), "--json").json["attempts"]
    assert list(attempt["error"]) == ["class", "message", "traceback"]


def test_status_of_a_done_job_has_its_result(tenure: Tenure, store: PostgresStore) -> None:
    assert tenure("status", rows.done(store), "--json").json["result"] == "made"


@pytest.mark.parametrize("id", ["01900000-0000-7000-8000-000000000000", "nonsense"])
def test_status_of_an_unknown_job_is_exit_status_1(tenure: Tenure, id: str) -> None:
    answer = tenure("status", id)
    assert (answer.status, answer.out, answer.err) == (1, "", f"tenure: no job {id}\n")
    assert tenure("status", id, "--json").out == "null\n"


def test_status_says_why_a_job_died(tenure: Tenure, store: PostgresStore) -> None:
    answer = tenure("status", rows.crashed(store))
    for said in (
        "dead, attempt 1",
        "attempt 1 crashed",
        "killed by SIGSEGV",
        "2.5s of CPU",
        "64 MiB",
        "40 of 100 (40%), page 40",
        'File "images.py", line 12 in decode',
        "last words",
        "node n1, worker 2, pid 4711",
    ):
        assert said in answer.out
    assert "ValueError: no such file" in tenure("status", rows.failed(store)).out


def test_what_a_job_says_cannot_drive_the_terminal(tenure: Tenure, store: PostgresStore) -> None:
    id = rows.failed(store, "\x1b]0;owned\x07\x1b[2Jno\rsuch\tfile")
    out = tenure("status", id).out
    assert "owned" in out
    assert not {"\x1b", "\x07", "\r"} & set(out)
    assert "owned" not in tenure("dead").out + tenure("jobs").out + tenure("dead", "--json").out


def test_jobs_lists_the_newest_first_and_can_choose(tenure: Tenure, store: PostgresStore) -> None:
    ids = [tenure("push", "cli.plain", "--queue", queue).out.strip() for queue in ("a", "b", "b")]
    dead = rows.crashed(store)

    def listed(*words: str) -> list[str]:
        header, *lines = tenure("jobs", *words).out.splitlines()
        assert header.split("\t")[:4] == ["id", "kind", "queue", "state"]
        return [line.split("\t")[0] for line in lines]

    assert listed() == [dead, *reversed(ids)]
    assert listed("--limit", "2") == [dead, ids[2]]
    assert listed("--queue", "b") == [ids[2], ids[1]]
    assert listed("--state", "dead") == listed("--kind", "cli.scale") == [dead]
    assert tenure("jobs", "--state", "asleep").status == 2
    assert tenure("jobs", "--limit", "0").status == 2


def test_jobs_as_json_is_one_object_a_line(tenure: Tenure, store: PostgresStore) -> None:
    for _ in range(2):
        tenure("push", "cli.plain")
    lines = tenure("jobs", "--json").out.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert list(json.loads(line)) == [
            key for key in JOB_KEYS if key not in ("payload", "result", "attempts")
        ]


def test_dead_lists_the_reasons(tenure: Tenure, store: PostgresStore) -> None:
    crashed, failed = rows.crashed(store), rows.failed(store)
    [_, first, second] = tenure("dead").out.splitlines()
    assert first.startswith(failed)
    assert first.endswith("\thandler_failed\tValueError")
    assert second.startswith(crashed)
    assert second.endswith("\tcrashed\tkilled by SIGSEGV")
    assert "last words" not in tenure("dead", "--json").out
    assert "\tdead\thandler_failed\t" in tenure("jobs").out
    assert "attempt 1 failed" in tenure("status", failed).out
    assert "handler_failed" in tenure("status", failed).out
    assert tenure("dead", "--kind", "cli.plain", "--json").out == ""
    assert len(tenure("dead", "--json", "--limit", "1").json["attempts"]) == 1


def test_cancel_takes_a_queued_job_out_and_asks_for_the_end_of_a_running_one(
    tenure: Tenure, store: PostgresStore
) -> None:
    running = rows.claimed(store).lease.id
    queued = tenure("push", "cli.plain").out.strip()
    assert tenure("cancel", queued, "--json").json == {"id": queued, "state": "cancelled"}
    assert tenure("cancel", running, "--json").json == {"id": running, "state": "running"}

    answer = tenure("cancel", queued)
    assert answer.status == 1
    assert "is cancelled, not queued or running" in answer.err
    assert tenure("cancel", new_id()).status == 1


def test_retry_queues_a_dead_job_again(tenure: Tenure, store: PostgresStore) -> None:
    dead = rows.crashed(store)
    assert tenure("retry", dead).out == "queued\n"

    answer = tenure("retry", dead, "--json")
    assert (answer.status, answer.json) == (1, {"id": dead, "state": None})
    assert "is queued, not dead" in answer.err
    assert "no job" in tenure("retry", new_id()).err


def test_retry_says_when_the_unique_key_is_taken(tenure: Tenure, store: PostgresStore) -> None:
    dead = rows.crashed(store, unique="one")
    tenure("push", "cli.scale", '{"path": "a"}', "--unique", "one")
    answer = tenure("retry", dead)
    assert answer.status == 1
    assert "unique key 'one'" in answer.err


def test_retry_all_queues_the_dead_jobs_of_a_kind(tenure: Tenure, store: PostgresStore) -> None:
    dead = [rows.crashed(store), rows.failed(store)]
    assert tenure("retry", "--all", "--kind", "cli.plain").out == "0 queued\n"
    assert tenure("retry", "--all", "--kind", "cli.scale", "--json").json == {
        "kind": "cli.scale",
        "queued": 2,
    }
    assert {status.state for id in dead if (status := store.status(id))} == {"queued"}
    for words in (
        (),
        ("--all",),
        (dead[0], "--all", "--kind", "cli.scale"),
        (dead[0], "--kind", "cli.scale"),
    ):
        assert tenure("retry", *words).status == 2


def test_reschedule_says_when_the_job_is_due(tenure: Tenure, store: PostgresStore) -> None:
    id = tenure("push", "cli.plain").out.strip()
    assert tenure("reschedule", id, "--at", "2090-01-31T08:00:00+01:00").out == "due 2090-01-31T07:00:00Z\n"
    answer = tenure("reschedule", id, "--after", "1h", "--json").json
    job = store.status(id)
    assert job is not None
    assert (answer["id"], datetime.fromisoformat(answer["due"])) == (id, job.due)
    for words in ((), ("--after", "1h", "--at", "2090-01-31T08:00:00Z"), ("--after", "soon")):
        assert tenure("reschedule", id, *words).status == 2

    running = rows.claimed(store).lease.id
    answer = tenure("reschedule", running, "--after", "1h", "--json")
    assert (answer.status, answer.json) == (1, {"id": running, "due": None})
    assert "is running, not queued" in answer.err


def test_delete_takes_out_all_that_is_not_running(tenure: Tenure, store: PostgresStore) -> None:
    id = rows.done(store)
    assert tenure("delete", id).out == "deleted\n"
    answer = tenure("delete", id, "--json")
    assert (answer.status, answer.json) == (1, {"id": id, "deleted": False})
    assert answer.err == f"tenure: no job {id}\n"
    running = rows.claimed(store).lease.id
    assert "is running, not queued or ended" in tenure("delete", running).err
    assert store.status(running) is not None


def test_on_a_terminal_a_table_has_colours_and_whole_ids(
    tenure: Tenure, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = rows.crashed(store)
    assert "\x1b[" not in tenure("jobs").out
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)
    for words in (("jobs",), ("dead",), ("status", dead)):
        out = tenure(*words).out
        assert "\x1b[" in out
        assert dead in out
    assert "SIGSEGV" in tenure("dead").out, "the last column is not cut either"
    assert tenure("nodes").out == "\x1b[2mno node is running\x1b[0m\n"


def test_kick_starts_one_run(tenure: Tenure, store: PostgresStore) -> None:
    answer = tenure("kick", "cli.tidy")
    assert (answer.status, answer.out, answer.err) == (0, "kicked\n", "")
    assert tenure("kick", "cli.tidy", "--json").json == {"kind": "cli.tidy", "kicked": True}
    assert store.start_kicked() == 2
    assert [(run.kind, run.queue) for run in store.jobs()] == [("cli.tidy", "upkeep")]


@pytest.mark.parametrize(
    ("kind", "says"), [("no.such", "no handler for kind 'no.such'"), ("cli.scale", "give each a default")]
)
def test_kick_refuses_what_cannot_be_kicked(bare: Tenure, kind: str, says: str) -> None:
    answer = bare("kick", kind)
    assert (answer.status, answer.out) == (2, "")
    assert says in answer.err
