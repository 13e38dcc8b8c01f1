"""Goal: an outbox says of each row what became of its message. Method: a real server, a real table, and kills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import psycopg
import pytest

from handlers import mail
from handlers.mail import OUTBOX, SendMail
from handlers.mailer import Mailer
from runtime.edges import worktables
from runtime.edges.postgres import PostgresStore
from runtime.model.jobs import JobView, State
from runtime.testing import LocalQueue, crash_everywhere
from tests.helpers import smtp
from tests.helpers.smtp import TO, Server

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DDL = "\n".join(line for line in (mail.__doc__ or "").splitlines() if line.startswith("    "))


@pytest.fixture(scope="module")
def post() -> Iterator[Server]:
    with smtp.running() as running:
        yield running


@pytest.fixture
def conn(schema_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(schema_dsn, autocommit=True) as made:
        made.execute(DDL.encode())
        yield made


class Outbox:
    """The table, and the job that sends what is in it."""

    def __init__(self, conn: psycopg.Connection[Any], url: str) -> None:
        self._conn = conn
        self._url = url
        self.now = NOW

    def insert(self, *subjects: str, **columns: object) -> None:
        for subject in subjects:
            given = {"recipient": TO, "subject": subject, "body": "text", "due": NOW} | columns
            names, places = ", ".join(given), ", ".join(["%s"] * len(given))
            self._conn.execute(
                f"insert into outbox ({names}) values ({places})".encode(), list(given.values())
            )

    def run(self, mailer: Mailer) -> JobView:
        """One run of the job, as it is on record."""
        with LocalQueue(
            self.now, provided={Mailer: mailer}, store=lambda clock: PostgresStore(self._url, clock=clock)
        ) as queue:
            id = queue.push(SendMail()) or ""
            queue.run_one()
            view = queue.status(id)
            assert view is not None
            return view

    def sent(self, mailer: Mailer) -> Any:
        """How many messages one run has sent."""
        view = self.run(mailer)
        assert view.result is not None
        return msgspec.json.decode(view.result)

    def rows(self) -> list[Any]:
        """Subject, state, failure, attempts, and whether it is still to be done."""
        return self._conn.execute(
            "select subject, state, failure, attempts, due is not null from outbox order by id"
        ).fetchall()


@pytest.fixture
def outbox(conn: psycopg.Connection[Any], schema_dsn: str) -> Outbox:
    return Outbox(conn, schema_dsn)


def test_the_table_of_the_docstring_is_a_work_table(conn: psycopg.Connection[Any]) -> None:
    assert worktables.lacks(conn, OUTBOX) == []


def test_each_row_is_sent_once(outbox: Outbox, post: Server) -> None:
    outbox.insert("a", "b")
    assert outbox.sent(post.mailer()) == 2
    assert outbox.sent(post.mailer()) == 0
    assert outbox.rows() == [("a", "sent", None, 1, False), ("b", "sent", None, 1, False)]
    assert [post.taken()["Subject"] for _ in "ab"] == ["a", "b"]


def test_without_a_transport_no_row_spends_a_try(outbox: Outbox) -> None:
    outbox.insert("a")
    assert outbox.run(Mailer(None)).state is State.DONE
    assert outbox.rows() == [("a", "waiting", None, 0, True)]


def test_a_batch_is_bounded(outbox: Outbox, post: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail, "BATCH", 2)
    outbox.insert("a", "b", "c")
    assert outbox.sent(post.mailer()) == 2
    assert [state for _, state, *_ in outbox.rows()] == ["sent", "sent", "waiting"]
    assert {post.taken()["Subject"] for _ in "ab"} == {"a", "b"}


@pytest.mark.parametrize(
    ("way", "state", "failure", "goes_again"),
    [
        ("refuses rcpt", "dead", "refused", False),
        ("defers text", "waiting", "refused_for_now", True),
        ("drops rcpt", "waiting", "connection_lost", True),
        ("drops text", "unknown", "connection_lost", False),
        ("babbles", "unknown", "protocol_broken", False),
    ],
)
def test_a_failure_is_its_rows_own_and_goes_again_only_when_it_may(
    outbox: Outbox, post: Server, way: str, state: str, failure: str, goes_again: bool
) -> None:
    outbox.insert("a", "b")
    assert outbox.run(post.mailer(way)).state is State.DONE
    assert outbox.rows() == [(name, state, failure, 1, goes_again) for name in "ab"]
    outbox.now += timedelta(seconds=61)
    assert outbox.sent(post.mailer()) == 2 * goes_again
    for _ in range(2 * goes_again):
        post.taken()


@pytest.mark.parametrize("security", ["tls", "starttls"])
def test_a_broken_transport_charges_no_row_and_gives_up_none(
    outbox: Outbox, post: Server, security: Any
) -> None:
    outbox.insert("a", "b")
    assert outbox.run(post.mailer(security=security)).state is State.DEAD, "it is the run that failed"
    assert outbox.rows() == [("a", "waiting", "tls_failed", 0, True), ("b", "waiting", None, 0, True)]
    assert outbox.sent(post.mailer()) == 2, "the next run finds both"
    for _ in "ab":
        post.taken()


@pytest.mark.parametrize(("header", "state"), [("", "unknown"), ("Key", "sent")], ids=["no key", "key"])
def test_a_row_whose_run_died_in_the_call_goes_again_only_where_the_key_is_known(
    outbox: Outbox, post: Server, header: str, state: str
) -> None:
    outbox.insert("a", state="sending")
    outbox.run(post.mailer(idempotency_header=header))
    assert [row[1] for row in outbox.rows()] == [state]
    if header:
        assert post.taken()["Key"] == "outbox/1"


def test_a_row_that_was_changed_after_it_was_tried_is_not_sent_under_its_key(
    outbox: Outbox, conn: psycopg.Connection[Any], post: Server
) -> None:
    outbox.insert("a")
    outbox.run(post.mailer("drops rcpt"))
    conn.execute("update outbox set body = 'another'")
    outbox.now += timedelta(seconds=61)
    outbox.run(post.mailer())
    assert outbox.rows() == [("a", "dead", "key_reused", 2, False)]


def test_killed_anywhere_it_sends_no_message_twice_and_claims_none_that_was_not(
    outbox: Outbox, conn: psycopg.Connection[Any], post: Server, schema_dsn: str
) -> None:
    states: list[tuple[str, str]] = []

    def reset() -> None:
        conn.execute("truncate outbox restart identity")
        outbox.insert(f"round {len(states)}", due=datetime.now(UTC) - timedelta(seconds=1))

    def check() -> None:
        [(subject, state, *_)] = outbox.rows()
        states.append((subject, state))

    points = crash_everywhere(
        SendMail(), check, reset=reset, provided={Mailer: post.mailer()}, url=schema_dsn
    )
    post.mailer().send(TO, "the end", "", idempotency_key="end")
    subjects = Counter(iter(lambda: post.taken()["Subject"], "the end"))
    assert points > 10
    for subject, state in states:
        assert subjects[subject] <= 1, "no message leaves twice"
        assert (state == "sent") <= (subject in subjects)
        assert (state == "waiting") <= (subject not in subjects)
    assert {state for _, state in states} == {"sent", "sending", "waiting"}
