"""Goal: what a worker wrote on its board is whole and outlives it. Method: a writer that never rests, or is killed."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec
import pytest

from runtime.edges.board import ENTRY_HEAD, JOURNAL_BYTES, PAGE, PROGRESS_AT, Board, Shown, create_file
from runtime.model.exits import Progress
from runtime.model.jobs import Ending, Lease, Settlement, State
from tests.helpers.waiting import wait_for

SEQUENCE_AT, JOURNAL_AT = 4 * 8, 6 * 8  # their words on the page
ID = "01a22cdb-626c-7000-b8d1-a78735c5e6c0"


def settled(number: int, result: str = "") -> Settlement:
    return Settlement(lease=Lease(ID, number), ending=Ending.DONE, state=State.DONE, result=result)


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board(create_file("test-board"))
    yield made
    made.close()


@contextmanager
def writer(body: Callable[[], None]) -> Iterator[int]:
    """Another process that runs `body`, killed at the end."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_second_mapping_of_the_same_file_reads_what_the_first_one_wrote(board: Board) -> None:
    other = Board(os.dup(board.fd))
    board.begin(7, now_ns=11, cpu_ns=5)
    board.show(Progress(1, 2, "note"), now_ns=13)
    board.note(settled(1, '{"a": 1}'))
    assert other.number == 7
    assert other.read() == Shown(7, 11, 5, 13, Progress(1, 2, "note"), settles=False)
    assert other.journal() == (settled(1, '{"a": 1}'),)
    other.close()


def test_a_job_finds_no_progress_of_the_one_before(board: Board) -> None:
    board.begin(1, 10, 0)
    board.show(Progress(5), 11)
    board.end()
    board.begin(2, 20, 0)
    assert board.read() == Shown(2, 20, 0, 0, None, settles=False)


def test_a_warning_is_for_one_claim_and_one_reason(board: Board) -> None:
    board.warn(3, "timeout")
    board.warn(4, "stall")
    board.warn(5, "cancel")
    assert [board.is_timed_out(n) for n in (3, 4, 5)] == [True, False, False]
    assert [board.is_stalled(n) for n in (3, 4, 5)] == [False, True, False]
    assert [board.why_ending(n, 1, 2) for n in (3, 4, 5, 6)] == ["timeout", "stall", "cancel", None]


def test_a_stop_is_for_all_claims_up_to_one(board: Board) -> None:
    board.warn(4, "stop")
    assert [board.why_ending(n, 1, 2) for n in (3, 4, 5)] == ["stop", "stop", None]


def test_a_lease_lasts_until_its_own_end_or_that_of_its_renewal(board: Board) -> None:
    assert board.why_ending(1, 99, 100) is None
    assert board.why_ending(1, 100, 100) == "lost"
    board.hold(1, 200)
    assert [board.why_ending(1, now, 100) for now in (199, 200)] == [None, "lost"]
    assert board.why_ending(2, 199, 100) == "lost", "the renewal was of an earlier claim"


def test_a_handler_that_settles_its_claim_says_so_until_the_next_one_begins(board: Board) -> None:
    board.begin(1, 10, 0)
    assert not board.read().settles
    board.settle(1)
    assert board.read().settles
    board.settle(0)
    assert not board.read().settles
    board.settle(1)
    board.begin(2, 20, 0)
    assert not board.read().settles


def test_a_wiped_board_says_nothing(board: Board) -> None:
    board.begin(1, 10, 0)
    board.show(Progress(5), 11)
    board.note(settled(1))
    board.warn(1, "timeout")
    board.wipe()
    assert board.read() == Shown(0, 0, 0, 0, None, settles=False)
    assert board.journal() == ()
    assert not board.is_timed_out(1)


def test_progress_that_is_too_long_leaves_the_last_one(board: Board) -> None:
    board.show(Progress(1), 1)
    board.show(Progress(2, note="x" * 2000), 2)
    assert board.read().progress == Progress(1)


def test_a_torn_report_is_never_seen_while_the_writer_never_rests(board: Board) -> None:
    def hammer() -> None:
        board.begin(1, 1, 1)
        number = 0
        while True:
            number += 1
            board.show(Progress(number, number, "abc"[number % 3] * 900), number)

    with writer(hammer):
        wait_for(lambda: board.read().progress)
        seen: set[float] = set()
        last = 0.0
        end_s = time.monotonic() + 1.0
        while time.monotonic() < end_s:
            progress = board.read().progress
            if progress is None:
                continue  # the writer was put to sleep in the middle
            assert progress.total == progress.done
            assert progress.note == "abc"[int(progress.done) % 3] * 900
            assert progress.done >= last
            last = progress.done
            seen.add(last)
        assert len(seen) > 1


def test_a_report_that_a_dead_writer_left_half_written_is_not_shown(board: Board) -> None:
    board.begin(1, 1, 1)
    board.show(Progress(1, 2, "a" * 100), 1)
    sequence = int.from_bytes(os.pread(board.fd, 8, SEQUENCE_AT), sys.byteorder)
    os.pwrite(board.fd, (sequence + 1).to_bytes(8, sys.byteorder), SEQUENCE_AT)
    os.pwrite(board.fd, b"b" * 20, PROGRESS_AT + 30)
    assert board.read() == Shown(1, 1, 1, 1, None, settles=False)


def test_a_report_that_was_broken_off_does_not_silence_those_after_it(board: Board) -> None:
    class Interrupted(Exception):  # noqa: N818
        pass

    def interrupt(signum: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(300):  # the limit of a handler strikes anywhere, in the middle of a report too
            with suppress(Interrupted):
                signal.setitimer(signal.ITIMER_REAL, random.uniform(50e-6, 300e-6))
                while True:
                    board.show(Progress(1, 2, "x" * 100), 1)
            board.show(Progress(3), 2)
            assert board.read().progress == Progress(3)
            board.begin(1, 1, 1)
            assert board.read().progress is None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_the_journal_takes_what_fits_and_says_when_it_is_full(board: Board) -> None:
    kept = 0
    while board.note(settled(kept, "x" * 5000)):
        kept += 1
    entry = ENTRY_HEAD + len(msgspec.msgpack.encode(settled(kept, "x" * 5000)))
    assert JOURNAL_BYTES - entry < kept * entry <= JOURNAL_BYTES
    assert [one.lease.epoch for one in board.journal()] == list(range(kept))
    board.clear_journal()
    assert board.journal() == ()
    assert board.note(settled(1))


def test_a_writer_killed_at_any_moment_leaves_whole_outcomes_and_all_that_it_had_noted(board: Board) -> None:
    def work() -> None:
        number = 0
        while True:
            board.clear_journal()
            for _ in range(50):
                number += 1
                board.begin(number, number, number)
                assert board.note(settled(number, "r" * (number % 700)))
                board.end()

    for turn in range(40):
        board.wipe()
        with writer(work):
            wait_for(board.journal)
            deadline_ns = time.perf_counter_ns() + turn * 37_000
            while time.perf_counter_ns() < deadline_ns:
                pass
        journal = board.journal()
        assert [one.result for one in journal] == ["r" * (one.lease.epoch % 700) for one in journal]
        epochs = [one.lease.epoch for one in journal]
        assert epochs == [epochs[0] + n for n in range(len(epochs))]
        running = board.number
        if epochs and running:
            assert running in (epochs[-1], epochs[-1] + 1), "the last one noted, or the one after it"


def test_an_outcome_that_was_scribbled_over_is_not_taken_for_another_one(board: Board) -> None:
    for number in range(5):
        board.note(settled(number, "true"))
    raw = os.pread(board.fd, 2000, PAGE)
    at = raw.index(b"true", raw.index(b"true", 100) + 1)
    os.pwrite(board.fd, b"null", PAGE + at)
    journal = board.journal()
    assert 0 < len(journal) < 5
    assert all(one.result == "true" for one in journal)


def test_whatever_bytes_a_dying_process_scribbles_reading_never_raises(board: Board) -> None:
    draw = random.Random(7)
    for turn in range(3000):
        board.wipe()
        for number in range(4):
            board.note(settled(number, "x" * draw.randrange(50)))
        board.show(Progress(1, 2, "note"), 1)
        size = len(os.pread(board.fd, 800, PAGE))
        for _ in range(draw.randint(1, 8)):
            os.pwrite(board.fd, draw.randbytes(draw.randint(1, 8)), PAGE + draw.randrange(size))
        os.pwrite(board.fd, draw.randbytes(8), 1024 + draw.randrange(20))
        if turn % 3 == 0:
            os.pwrite(board.fd, draw.randbytes(8), 8 * draw.randrange(10))
        board.read()
        for one in board.journal():
            assert one.lease.id == ID


def test_a_length_or_an_end_beyond_what_was_written_ends_the_list(board: Board) -> None:
    board.note(settled(1))
    board.note(settled(1))
    first = int.from_bytes(os.pread(board.fd, 4, PAGE), "big") + ENTRY_HEAD
    os.pwrite(board.fd, (5000).to_bytes(8, sys.byteorder), JOURNAL_AT)
    assert board.journal() == (settled(1), settled(1)), "an empty entry has the right sum and is none"
    os.pwrite(board.fd, b"\xff\xff\xff\xff", PAGE + first)
    assert board.journal() == (settled(1),)
    os.pwrite(board.fd, b"\xff" * ENTRY_HEAD, PAGE)
    assert board.journal() == ()
