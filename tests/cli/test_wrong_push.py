"""What `tenure push` refuses: in one line, with exit status 2, and with nothing queued."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from runtime.edges.postgres import PostgresStore
from tests.cli.conftest import Tenure
from tests.helpers.databases import Server


@pytest.fixture(scope="module")
def schema_dsn(server: Server, template: str) -> Iterator[str]:
    """One database for all: each test leaves it as empty as it was."""
    with server.database(template) as url:
        yield url


def pushed(store: PostgresStore) -> int:
    return sum(store.counts().states.values())


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["no.such"], ["'no.such'", "cli.scale"]),
        (["cli.scale", '{"path": '], ["cli.scale", "is not JSON"]),
        (["cli.scale"], ["cli.scale", "path", "is missing"]),
        (["cli.scale", '{"path": 1}'], ["cli.scale", "path", "str"]),
        (["cli.scale", '{"path": "a", "wdith": 1}'], ["cli.scale", "wdith"]),
        (["cli.scale", "[]"], ["cli.scale"]),
        (["cli.scale", '{"path": "a\\u0000"}'], ["cli.scale", "path", "NUL"]),
        (["cli.plain", "--at", "2090-01-31T08:00:00"], ["at", "time zone"]),
        (["cli.plain", "--at", "tomorrow"], ["--at", "tomorrow"]),
        (["cli.plain", "--at", "9999-12-31T00:00:00+00:00"], ["at", "9999"]),
        (["cli.plain", "--after", "10"], ["--after", "10s", "90s"][:1]),
        (["cli.plain", "--after", "36500d"], ["after"]),
        (["cli.plain", "--after", "1s", "--at", "2090-01-31T08:00:00Z"], ["after", "at"]),
        (["cli.plain", "--priority", "10"], ["--priority"]),
        (["cli.plain", "--queue", "@later"], ["queue", "@later"]),
        (["cli.plain", "--queue", ""], ["queue"]),
        (["cli.plain", "--unique", "k" * 65], ["unique", "64"]),
        (["cli.plain", "--or-existing"], ["--or-existing", "--unique"]),
        (["cli.plain", "--replace"], ["--replace", "--unique"]),
        (["cli.plain", "--unique", "k", "--replace", "--or-existing"], ["--replace", "--or-existing"]),
        (["cli.plain", "--unique", "k", "--within", "30s"], ["--within"]),  # a command would not remember it
        (["cli.plain", "--id", "7"], ["id", "UUID"]),
        (["cli.plain", "--nosuch"], ["--nosuch"]),
        ([], ["KIND"]),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_a_wrong_push_says_so_in_one_line_and_queues_nothing(
    tenure: Tenure, store: PostgresStore, words: list[str], named: list[str]
) -> None:
    answer = tenure("push", *words)

    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith("tenure: ")
    assert answer.err.count("\n") == 1
    assert [each for each in named if each not in answer.err] == []
    assert pushed(store) == 0


def test_a_number_that_no_jsonb_holds_is_refused_by_its_field(tenure: Tenure, store: PostgresStore) -> None:
    answer = tenure("push", "cli.scale", '{"path": "a", "more": 1e400}')
    assert answer.status == 2
    assert "more" in answer.err
    assert pushed(store) == 0
