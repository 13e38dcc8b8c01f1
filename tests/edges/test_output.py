"""Goal: every line printed is logged for the job that printed it, up to a cap. Method: a worker and its reader, modelled."""

from __future__ import annotations

import time
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.edges.output import CUT, LINE_MAX, LINES_MAX, LOGGED_MAX, PIPE_BYTES, Capture, marker
from runtime.model.exits import OUTPUT_TAIL

SECRET = "0123456789abcdef"


def captured(*feeds: tuple[bytes, int, int]) -> list[tuple[int, str]]:
    capture = Capture(SECRET)
    return [line for feed in feeds for line in capture.feed(*feed)]


def run(capture: Capture, number: int, data: bytes, size: int = PIPE_BYTES) -> Iterator[tuple[int, str]]:
    """What comes of the output of one job, read in pieces of `size` bytes."""
    for at in range(0, len(data), size):
        yield from capture.feed(data[at : at + size], number, number)
    yield from capture.feed(marker(SECRET, number), number, 0)


# -- the property


@dataclass
class Worker:
    """A worker that prints: byte by byte what it puts into the pipe, and what stands on its board meanwhile."""

    steps: list[int | bytes] = field(default_factory=list)  # a byte for the pipe, or a number for the board
    at: int = 0
    board: int = 0
    begun: bool = False
    pipe: bytearray = field(default_factory=bytearray)

    def job(self, number: int, prints: list[bytes]) -> None:
        output = b"".join(prints)
        self.steps.append(number)
        self.steps += [bytes([byte]) for byte in output]
        if output:
            self.steps += [bytes([byte]) for byte in marker(SECRET, number)]
        self.steps.append(0)

    def go_on(self, count: int) -> None:
        for step in self.steps[self.at : self.at + count]:
            if isinstance(step, int):
                self.board = step
                self.begun = True
            else:
                self.pipe += step
        self.at = min(self.at + count, len(self.steps))

    def drain(self) -> bytes:
        data = bytes(self.pipe)
        self.pipe.clear()
        return data


def expected(output: bytes) -> list[str]:
    return (
        [line.decode("utf-8", "replace") for line in output.removesuffix(b"\n").split(b"\n")]
        if output
        else []
    )


scraps = st.sampled_from(
    [
        *(b"a", b"line\n", b"\n", b"no end", b"\r\n", b"\xff", "ö".encode()),
        *(b"\x1e", b"\x1e\n", b"\x1e" + SECRET[:5].encode()),
        *(f"\x1e{SECRET} ".encode(), f"\x1e{SECRET} x\x1e\n".encode()),
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    jobs=st.lists(st.lists(scraps, max_size=5), max_size=6),
    turns=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30), st.integers(0, 30)), max_size=60),
    killed=st.booleans(),
)
def test_each_line_belongs_to_its_job_however_the_stream_is_cut(
    jobs: list[list[bytes]], turns: list[tuple[int, int, int]], killed: bool
) -> None:
    worker, capture = Worker(), Capture(SECRET)
    for number, prints in enumerate(jobs, 1):
        worker.job(number, prints)
    found: dict[int, list[str]] = defaultdict(list)

    def read(between: int, meanwhile: int) -> None:
        before = worker.board
        worker.go_on(between)
        data = worker.drain()
        worker.go_on(meanwhile)
        for number, line in capture.feed(data, before, worker.board, begun=worker.begun):
            found[number].append(line)

    for idle, between, meanwhile in turns:
        worker.go_on(idle)
        read(between, meanwhile)
    if not killed:
        worker.go_on(len(worker.steps))
    read(0, 0)
    for number, line in capture.end(worker.board):
        found[number].append(line)

    for number, prints in enumerate(jobs, 1):
        output, lines = b"".join(prints), found.pop(number, [])
        if not killed:
            assert lines == expected(output)
        elif number != worker.board:
            assert lines in (expected(output), [])
        else:
            whole = "\n".join(expected(output))
            assert whole.startswith("\n".join(lines).rstrip("\ufffd"))
    assert not found, "nothing is nobody's"


@settings(deadline=None)
@given(
    output=st.lists(st.sampled_from([b"x" * 5000, "ö€𝄞".encode() * 1500, b"\n", b"\xff"]), max_size=8).map(
        b"".join
    ),
    cuts=st.lists(st.integers(1, 20_000), max_size=10),
)
def test_a_long_line_is_logged_in_the_same_pieces_however_it_is_cut(output: bytes, cuts: list[int]) -> None:
    whole = list(run(Capture(SECRET), 1, output, size=10**6))
    capture, at, lines = Capture(SECRET), 0, []
    for cut in cuts:
        lines += capture.feed(output[at : at + cut], 1, 1)
        at += cut
    lines += capture.feed(output[at:], 1, 1)
    lines += capture.feed(marker(SECRET, 1), 1, 1)
    assert lines == whole
    assert all(len(line.encode("utf-8", "replace")) <= 3 * LINE_MAX for _, line in lines)
    if len(output) < LOGGED_MAX and b"\xff" not in output:
        assert "".join(line for _, line in lines) == output.decode().replace("\n", ""), (
            "no character is split"
        )


# -- single cases


def test_a_line_is_given_out_as_soon_as_it_is_whole() -> None:
    capture = Capture(SECRET)
    assert capture.feed(b"hal", 1, 1) == []
    assert capture.feed(b"f\nnext", 1, 1) == [(1, "half")]


def test_what_a_module_prints_at_its_import_is_no_jobs_and_given_out_at_once() -> None:
    assert Capture(SECRET).feed(b"hello\n", 0, 0, begun=False) == [(0, "hello")]


def test_a_line_of_a_job_that_came_and_went_between_two_looks_waits_for_its_marker() -> None:
    capture = Capture(SECRET)
    assert capture.feed(b"quick\n", 0, 0) == []
    assert capture.feed(marker(SECRET, 1), 0, 0) == [(1, "quick")]


def test_what_belongs_to_nobody_for_sure_is_held_back_within_a_bound() -> None:
    capture = Capture(SECRET)
    capture.feed(marker(SECRET, 1), 1, 0)
    lines = [line for _ in range(100) for line in capture.feed(b"idle talk\n" * 6000, 0, 0)]
    assert 0 < len(lines) <= LINES_MAX + 1
    assert {number for number, _ in lines} == {0}


def test_a_marker_that_arrives_in_two_parts_is_in_no_piece_of_a_long_line() -> None:
    line, end = b"y" * (LINE_MAX - 3), marker(SECRET, 1)
    assert captured((line + end[:20], 1, 1), (end[20:], 1, 1)) == [(1, line.decode())]


def test_empty_lines_are_lines() -> None:
    assert captured((b"a\n\n\nb\n", 1, 1)) == [(1, "a"), (1, ""), (1, ""), (1, "b")]


def test_a_marker_with_another_secret_is_text() -> None:
    stranger = marker("fedcba9876543210", 5)
    [(number, line)] = captured((stranger, 1, 1))
    assert (number, line) == (1, stranger.decode().removesuffix("\n"))


def test_a_secret_that_got_out_does_no_harm() -> None:
    forged = f"\x1e{SECRET} not a number\x1e\nnext\n".encode()
    assert [number for number, _ in captured((forged, 1, 1))] == [1, 1]


def test_the_rest_without_a_line_end_comes_when_the_process_has_ended() -> None:
    capture = Capture(SECRET)
    assert capture.feed(b"x", 1, 1) == []
    assert capture.end(1) == [(1, "x")]
    assert capture.end(1) == []
    assert capture.last_words() == "x"


def test_the_tail_is_of_the_job_that_runs_and_no_longer_than_its_bound() -> None:
    capture = Capture(SECRET)
    capture.feed(b"at import\n", 0, 0, begun=False)
    capture.feed(b"of job 1\n" + marker(SECRET, 1) + b"of job 2\n", 2, 2)
    capture.feed(b"half\x00 a line", 2, 2)
    assert capture.last_words() == "of job 2\nhalf\\0 a line"
    capture.feed(b"y" * 200_000 + b"end", 2, 2)
    capture.end(2)
    assert len(capture.last_words()) == OUTPUT_TAIL
    assert capture.last_words().endswith("yend")


def test_a_silent_job_inherits_no_tail() -> None:
    capture = Capture(SECRET)
    capture.feed(b"at import\n", 0, 0, begun=False)
    assert capture.last_words() == ""
    capture.feed(b"of job 1\n" + marker(SECRET, 1), 2, 2)
    assert capture.last_words() == ""
    assert capture.end(2) == []


def test_half_a_marker_is_no_last_word() -> None:
    capture = Capture(SECRET)
    capture.feed(b"bye\n" + marker(SECRET, 1)[:10], 1, 1)
    assert capture.end(1) == []
    assert capture.last_words() == "bye\n"


@pytest.mark.parametrize(
    "line", [b"x" * 99 + b"\n", b"\n", b"x" * 10**5], ids=["lines", "empty lines", "one line"]
)
def test_a_hundred_megabytes_cost_little_time_and_memory_and_end_in_one_mark(line: bytes) -> None:
    capture = Capture(SECRET)
    chunk = (line * (PIPE_BYTES // len(line) + 1))[:PIPE_BYTES]
    tracemalloc.start()
    began_s = time.process_time()
    lines = [one for _ in range(100 * 2**20 // PIPE_BYTES) for one in capture.feed(chunk, 1, 1)]
    took_s = time.process_time() - began_s
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took_s < 5
    assert peak < 2 * 2**20
    assert lines.pop() == (1, CUT)
    assert CUT not in {text for _, text in lines}
    assert sum(len(text) for _, text in lines) <= LOGGED_MAX
    assert len(lines) <= LINES_MAX
    assert len(capture.last_words()) == OUTPUT_TAIL
    capture.feed(marker(SECRET, 1), 1, 1)
    assert list(run(capture, 2, b"the next job is heard\n")) == [(2, "the next job is heard")]


def test_many_jobs_in_one_read_are_told_apart() -> None:
    jobs = range(1, 1500)
    data = b"".join(b"job %d\n" % n + marker(SECRET, n) for n in jobs)
    assert captured((data, 0, 0)) == [(n, f"job {n}") for n in jobs]
