"""Goal: `tenure run` is parsed by itself as by the parser of all commands. Method: both, on words of all sorts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.cli import commands, serve
from runtime.cli.serve import Asked, parse

PLAIN = [
    (["run"], Asked()),
    (["run", "--workers", "3"], Asked(workers=3)),
    (["run", "--workers=1024", "--until-idle"], Asked(workers=1024, until_idle=True)),
    (["run", "--workers", "3", "--workers", "007"], Asked(workers=7)),
    (["run", "--config", "a b.toml"], Asked(config=Path("a b.toml"))),
    (["--config=a=b", "run"], Asked(config=Path("a=b"))),
    (["--config", "a", "run", "--config", "b"], Asked(config=Path("b"))),
    (["--config", "run", "run"], Asked(config=Path("run"))),
]
NOT_PLAIN = [
    [],
    ["--help"],
    ["push", "run"],
    ["run", "run"],
    ["run", "--help"],
    ["run", "more"],
    ["run", "--"],
    ["run", "--until-idle=yes"],
    ["--until-idle", "run"],
    ["--workers", "2", "run"],
    *(["run", f"--workers={wrong}"] for wrong in ("", "0", "1025", "-1", "2.0", "1_0", "\u0663", "9" * 5000)),
    ["run", "--workers"],
    ["run", "--workers", "--until-idle"],
    ["run", "--config"],
    ["run", "--config="],
    ["--config"],
]


def by_all(words: list[str]) -> Asked:
    """What the parser of all commands asks of `serve.run`."""

    def run(*asked: Any) -> int:
        ran.append(Asked(*asked))
        return 0

    ran: list[Asked] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serve, "run", run)
        assert commands.invoke(words) == 0
    [asked] = ran
    return asked


@pytest.mark.parametrize(("words", "asked"), PLAIN)
def test_plain_words_are_understood(words: list[str], asked: Asked) -> None:
    assert parse(words) == asked == by_all(words)


@pytest.mark.parametrize("words", NOT_PLAIN, ids=str)
def test_all_others_are_left_to_the_parser_of_all_commands(words: list[str]) -> None:
    assert parse(words) is None


@given(
    st.lists(
        st.sampled_from(
            [
                "run",
                "--workers",
                "--until-idle",
                "--config",
                "--workers=2",
                "--config=a",
                "1",
                "0",
                "x",
                "--help",
            ]
        ),
        max_size=6,
    )
)
def test_what_is_understood_the_parser_of_all_commands_understands_alike(words: list[str]) -> None:
    asked = parse(words)
    assert asked is None or asked == by_all(words)
