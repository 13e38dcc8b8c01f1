"""What is kept of an attempt that failed: a code, and words that a hook may redact and that quote no payload."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

import pytest

from runtime import NO_RETRY, Context, Job, job
from runtime.actors.attempt import UNREDACTED, Redact, settle_attempt, writes_of
from runtime.edges.fence import Sessions
from runtime.errors import PayloadInvalid
from runtime.model.jobs import TEXT_LIMIT, Claim, Code, Ending, Lease, Settlement, State
from runtime.registry import DEFINED

MARKER = "4711-SECRET"


@job("a-picky", retry=NO_RETRY)
class Picky(Job):
    color: Literal["red"] = "red"
    nested: dict[str, Literal["blue"]] | None = None

    def run(self, ctx: Context) -> object:
        raise NotImplementedError


@job("a-older", retry=NO_RETRY)
class Older(Job):
    version = 2

    @classmethod
    def upgrade(cls, raw: dict[str, object], version: int) -> dict[str, object]:
        return {"name": raw["nmae"]}

    name: str = ""

    def run(self, ctx: Context) -> None: ...


def settled(
    cls: type[Job],
    run: Callable[[], object] = lambda: None,
    payload: str = "{}",
    redact: Redact | None = None,
) -> Settlement:
    definition = DEFINED.definition_of(cls)
    claim = Claim(
        lease=Lease("01900000-0000-7000-8000-000000000001", 1),
        kind=definition.kind,
        queue="default",
        priority=5,
        due=datetime(2026, 3, 1, tzinfo=UTC),
        attempt=1,
        failures=0,
        crashes=0,
        payload=payload,
    )
    writes = writes_of(claim, definition, Sessions(""), lambda _: None)
    got = settle_attempt(
        claim,
        definition,
        definition.limits(60.0),
        lambda *_: run(),
        lambda: None,
        lambda _: None,
        writes,
        redact,
    )
    assert got is not None
    return got


def fail(message: str) -> Callable[[], object]:
    def run() -> object:
        raise ValueError(message)

    return run


@pytest.mark.parametrize(
    "payload",
    [
        f'{{"color": "{MARKER}"}}',
        f'{{"color": " - at `${MARKER}"}}',
        f'{{"nested": {{"a": "{MARKER}"}}}}',
        f'{{"color": ["{MARKER}"]}}',
        f'{{"nested": "{MARKER}"}}',
    ],
)
def test_a_payload_that_does_not_fit_is_not_quoted(payload: str) -> None:
    got = settled(Picky, payload=payload)
    assert (got.state, got.code) == (State.DEAD, Code.PAYLOAD_INVALID)
    assert got.error is not None
    assert got.error.class_ == "PayloadInvalid"
    assert "color" in got.error.message or "nested" in got.error.message, "the field is named"
    assert MARKER not in got.error.message + got.error.traceback


def test_a_value_that_the_type_does_not_allow_is_refused_at_push_by_the_name_of_its_field() -> None:
    with pytest.raises(PayloadInvalid) as caught:
        DEFINED.get("a-picky").encode(Picky(color=MARKER))  # type: ignore[arg-type]
    assert caught.value.problem == "color: is none of the values that its type allows"


@pytest.mark.parametrize(
    ("cls", "run", "payload", "code"),
    [
        (Picky, fail("no"), "{}", Code.HANDLER_FAILED),
        (Picky, object, "{}", Code.RESULT_INVALID),
        (Older, object, "{}", Code.HANDLER_FAILED),
        (Older, object, '{"$version": 3}', Code.PAYLOAD_INVALID),
        (Picky, lambda: DEFINED.get("a-picky").decode("[]"), "{}", Code.HANDLER_FAILED),
    ],
    ids=["raised", "result", "upgrade raised", "too new", "raised one of ours"],
)
def test_the_code_says_whose_fault_it_was(
    cls: type[Job], run: Callable[[], object], payload: str, code: Code
) -> None:
    got = settled(cls, run, payload)
    assert (got.ending, got.code) == (Ending.DEAD, code)


def test_a_hook_redacts_the_message_and_the_traceback() -> None:
    error = settled(Picky, fail(f"for {MARKER}"), redact=lambda text: text.replace(MARKER, "***")).error
    assert error is not None
    assert error.message == "for ***"
    assert error.traceback.endswith("ValueError: for ***\n")


@pytest.mark.parametrize(
    "bad", [ZeroDivisionError("x"), SystemExit(), None], ids=["raises", "exits", "no text"]
)
def test_a_hook_that_fails_leaves_a_fixed_text(bad: BaseException | None) -> None:
    def redact(text: str) -> str:
        if bad is not None:
            raise bad
        return len(text)  # type: ignore[return-value]

    error = settled(Picky, fail(MARKER), redact=redact).error
    assert error is not None
    assert (error.class_, error.message, error.traceback) == ("ValueError", UNREDACTED, UNREDACTED)


def test_what_a_hook_is_given_and_gives_is_bounded() -> None:
    given: list[int] = []

    def redact(text: str) -> str:
        given.append(len(text))
        return text * 3

    error = settled(Picky, fail("x" * 2 * TEXT_LIMIT), redact=redact).error
    assert error is not None
    assert max(given) <= TEXT_LIMIT
    assert max(len(error.message), len(error.traceback)) <= TEXT_LIMIT
