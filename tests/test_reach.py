"""Goal: wrong declarations are refused where they are written; what a kind lacks is named before it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from runtime import NO_RETRY, Context, Filesystem, Job, Queue, Right, errors, job
from runtime.actors import worker  # noqa: F401 - it provides connections
from runtime.config import Config, DatabaseConfig
from runtime.definition import Definition
from runtime.model.jobs import State
from runtime.providers import Provided, unservable
from runtime.registry import DEFINED
from runtime.testing import LocalQueue


@pytest.fixture
def defined(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Definition]:
    """Define a kind whose `run` asks for nothing, or for what is given."""
    monkeypatch.setattr(DEFINED, "_by_kind", dict(DEFINED._by_kind))
    monkeypatch.setattr(DEFINED, "_by_class", dict(DEFINED._by_class))

    def define(run: Callable[..., Any] | None = None, **options: Any) -> Definition:
        def plain(self: Any, ctx: Context) -> None: ...

        cls = type("Reaching", (Job,), {"run": run or plain, "__module__": __name__})
        job("reaching", retry=NO_RETRY, **options)(cls)
        return DEFINED.get("reaching")

    return define


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rights": "outbox.write"}, "rights='outbox.write': write a tuple"),
        ({"rights": ("outbox",)}, 'such as ("outbox.write",)'),
        ({"rights": (3,)}, "write a tuple"),
        ({"egress": "https://a"}, "egress='https://a': write a tuple"),
        ({"egress": ("api.example.com",)}, "'api.example.com' is no origin"),
        ({"egress": ("ftp://a",)}, "'ftp://a' needs a port"),
        ({"egress": ("https://a/x",)}, "has more than a scheme, a host and a port"),
        ({"filesystem": ("/srv",)}, "write Filesystem("),
        ({"filesystem": Filesystem(read=("srv",))}, "with absolute paths"),
        ({"filesystem": Filesystem(write="/srv")}, "with absolute paths"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_declaration_is_refused_with_what_to_write(
    defined: Callable[..., Definition], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(errors.DefinitionError, match="Reaching") as refused:
        defined(**options)
    assert said in str(refused.value)


def test_a_strict_sandbox_serves_no_kind_that_leaves_something_open(
    defined: Callable[..., Definition],
) -> None:
    half = defined(rights=())
    assert unservable([half], "declared") == {}
    problem = unservable([half], "strict")["reaching"]
    assert "does not declare egress, filesystem; write egress=(), filesystem=Filesystem()," in problem
    assert unservable([defined(rights=(), egress=(), filesystem=Filesystem())], "strict") == {}


def test_a_kind_without_a_right_for_the_database_cannot_ask_for_it(
    defined: Callable[..., Definition],
) -> None:
    def asks(self: Any, ctx: Context, conn: psycopg.Connection[Any]) -> None: ...

    def pushes(self: Any, ctx: Context, queue: Queue) -> None: ...

    def may_do_without(self: Any, ctx: Context, conn: psycopg.Connection[Any] | None = None) -> None: ...

    for run in (asks, pushes):
        problem = unservable([defined(run, rights=("mail.send",))], "declared")["reaching"]
        assert 'ends in ".read" or ".write"' in problem
        assert unservable([defined(run, rights=("outbox.read",))], "declared") == {}
    assert unservable([defined(may_do_without, rights=())], "declared") == {}


def test_without_a_right_for_the_database_providers_do_not_get_its_url() -> None:
    given = {str: "given"}
    ours = Provided(Config(database=DatabaseConfig(url="postgresql://u:p@h/d")), given)
    assert ours.anew(database=True).config == ours.config
    assert ours.anew(database=False).config.database.url == ""


def test_a_right_is_given_if_declared_and_else_the_declaration_is_named(
    defined: Callable[..., Definition],
) -> None:
    got: list[Right] = []

    def run(self: Any, ctx: Context) -> None:
        got.append(ctx.right("outbox.write"))
        ctx.right("users.read")

    with LocalQueue() as queue:
        for options in ({"rights": ("outbox.write",)}, {}):
            queue.push(defined(run, **options).cls())
        first, second = queue.run_one(), queue.run_one()
    assert first is not None
    assert second is not None
    assert second.state is State.DONE, "who declares no rights has all"
    assert got[0] == Right("outbox.write", "reaching", first.id)
    with LocalQueue() as queue:
        queue.push(defined(run, rights=("outbox.write",)).cls())
        view = queue.run_one()
    assert view is not None
    error = view.attempts[0].error
    assert error is not None
    assert (error.class_, error.message) == (
        "RightMissing",
        (
            "kind 'reaching' has no right 'users.read'; "
            'write @job("reaching", rights=("outbox.write", "users.read"))'
        ),
    )
