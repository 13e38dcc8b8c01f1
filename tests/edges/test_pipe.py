"""Goal: whatever arrives, and however slowly it is read, messages are whole and nobody waits. Method: real pipes."""

from __future__ import annotations

import fcntl
import itertools
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.edges.pipe import FRAME_MAX, HEADER, OUTBOX_MAX, READ_MAX, Frames, Pipe, Tokens
from runtime.errors import BadFrame, PeerGone


class Word(msgspec.Struct, frozen=True, tag=True):
    text: str


class News(msgspec.Struct, frozen=True, tag=True):
    number: int
    padding: bytes = b""


Any2 = Word | News


def framed(message: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(HEADER, "big") + body


def pair() -> tuple[Pipe[Any2], Pipe[Any2]]:
    """Both ends of a connection."""
    there, back = os.pipe(), os.pipe()
    return Pipe(back[0], there[1], Any2), Pipe(there[0], back[1], Any2)


@contextmanager
def connection() -> Iterator[tuple[Pipe[Any2], Pipe[Any2]]]:
    near, far = pair()
    try:
        yield near, far
    finally:
        near.close()
        far.close()


@contextmanager
def raw() -> Iterator[tuple[Pipe[Any2], int]]:
    """A pipe that receives, and the descriptor of who writes to it what he likes."""
    read_fd, write_fd = os.pipe()
    spare = os.pipe()
    receiver: Pipe[Any2] = Pipe(read_fd, spare[1], Any2)
    try:
        yield receiver, write_fd
    finally:
        receiver.close()
        os.close(spare[0])
        os.close(write_fd)


def fill(sender: Pipe[Any2]) -> None:
    """Send until some of it stays here."""
    while sender.is_flushed:
        sender.send(News(0, b"x" * 30_000))


@contextmanager
def forked(body: Callable[[], None]) -> Iterator[int]:
    """Another process that runs `body`; it is gone afterwards."""
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


# -- the stream


def test_a_frame_may_be_cut_at_every_byte() -> None:
    messages = [Word("first"), News(2, b"\x00" * 300), Word("")]
    stream = b"".join(framed(message) for message in messages)
    for cut in range(len(stream) + 1):
        with raw() as (receiver, write_fd):
            os.write(write_fd, stream[:cut])
            found = receiver.receive()
            os.write(write_fd, stream[cut:])
            assert found + receiver.receive() == messages, f"cut at byte {cut}"


@settings(max_examples=50, deadline=None)
@given(
    messages=st.lists(st.builds(Word, st.text()) | st.builds(News, st.integers(0, 2**40), st.binary())),
    cuts=st.lists(st.integers(0, 10**4)),
)
def test_any_split_of_any_stream_gives_the_same_frames(messages: list[Any2], cuts: list[int]) -> None:
    stream = b"".join(framed(message) for message in messages)
    places = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    frames = Frames()
    found = []
    for start, end in itertools.pairwise(places):
        found += frames.feed(stream[start:end])
    assert [msgspec.msgpack.decode(frame, type=Any2) for frame in found] == messages


def test_a_header_that_claims_four_gigabytes_is_refused_before_anything_is_kept_for_it() -> None:
    with raw() as (receiver, write_fd):
        os.write(write_fd, b"\xff\xff\xff\xff")
        with pytest.raises(BadFrame, match="4294967295"):
            receiver.receive()


def test_the_longest_frame_passes_and_one_byte_more_does_not() -> None:
    frames = Frames()
    assert frames.feed(FRAME_MAX.to_bytes(HEADER, "big") + b"x" * FRAME_MAX) == [b"x" * FRAME_MAX]
    with pytest.raises(BadFrame):
        frames.feed((FRAME_MAX + 1).to_bytes(HEADER, "big"))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x83\xa4type\xa4Word\xa4text\xa1x\xa1z" + b"\x91" * 50_000,  # nested deeper than any decoder goes
        msgspec.msgpack.encode({"type": "Stranger"}),
        msgspec.msgpack.encode({"text": "no kind"}),
        msgspec.msgpack.encode({"type": "News", "number": "a text"}),
        msgspec.msgpack.encode([1, 2, 3]),
        b"\x82\xa4type\xa4Word\xa4text\xa2\xff\xff",  # a text that is none
    ],
)
def test_what_is_no_message_gives_the_peer_up_and_nothing_after_it_is_trusted(body: bytes) -> None:
    with raw() as (receiver, write_fd):
        os.write(write_fd, len(body).to_bytes(HEADER, "big") + body)
        with pytest.raises(BadFrame):
            receiver.receive()
        os.write(write_fd, framed(Word("well-formed")))
        with pytest.raises(PeerGone):
            receiver.receive()


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_messages_or_a_bad_frame(data: bytes) -> None:
    with raw() as (receiver, write_fd):
        os.write(write_fd, len(data).to_bytes(HEADER, "big") + data)
        with suppress(BadFrame):
            receiver.receive()


def test_the_last_words_of_a_closed_peer_come_before_its_end() -> None:
    near, far = pair()
    far.send(Word("goodbye"))
    os.write(far.write_fd, framed(Word("half"))[:5])
    far.close()
    assert near.receive() == [Word("goodbye")]
    with pytest.raises(PeerGone):
        near.receive()
    near.close()


def test_one_talker_is_read_in_bounded_turns() -> None:
    with raw() as (receiver, write_fd):
        fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, 2**20)
        message = framed(News(1, b"x" * 50_000))
        for _ in range(20):
            os.write(write_fd, message)
        assert len(receiver.receive()) == READ_MAX // len(message)


def test_the_end_is_told_after_the_words_that_came_with_it() -> None:
    near, far = pair()
    padding = 2**16 - len(framed(News(1, b"x" * 60_000))) + 60_000
    word = News(1, b"x" * padding)
    assert len(framed(word)) == 2**16, "one read takes all of it and leaves the end for the next"
    os.write(far.write_fd, framed(word))
    far.close()
    assert near.receive() == [word]
    with pytest.raises(PeerGone):
        near.receive()
    near.close()


# -- sending


def test_both_sides_with_full_pipes_lose_nothing() -> None:
    with connection() as (near, far):
        for end in (near, far):
            fill(end)
            for number in range(1, 50):
                end.send(News(number, b"y" * 5000))
        found: dict[Pipe[Any2], list[Any2]] = {near: [], far: []}
        while not (near.flush() and far.flush()):
            for end in (near, far):
                found[end] += end.receive()
        for end in (near, far):
            found[end] += end.receive()
            numbers = [one.number for one in found[end] if isinstance(one, News) and one.number]
            assert numbers == list(range(1, 50))


def test_an_oversized_message_is_refused_and_the_next_one_passes() -> None:
    with connection() as (near, far):
        with pytest.raises(BadFrame, match="1048"):
            near.send(News(1, b"x" * FRAME_MAX))
        near.send(Word("next"))
        assert far.receive() == [Word("next")]


def test_only_the_newest_progress_is_kept_and_nothing_else_is_dropped() -> None:
    with connection() as (near, far):
        fill(near)
        for number in range(100):
            near.send(Word(f"word {number}"))
            near.send(News(number), replaces="News")
        found = list(far.receive())
        while not near.flush():
            found += far.receive()
        found += far.receive()
        assert [one.text for one in found if isinstance(one, Word)] == [f"word {n}" for n in range(100)]
        assert [one.number for one in found if isinstance(one, News) and one.number] == [99]


def test_a_message_that_has_begun_to_leave_is_not_replaced() -> None:
    with connection() as (near, far):
        big = News(1, b"x" * 200_000)
        near.send(big, replaces="News")
        assert not near.is_flushed, "some of it has left, some has not"
        near.send(News(2), replaces="News")
        near.send(News(3), replaces="News")
        found = list(far.receive())
        while not near.flush():
            found += far.receive()
        found += far.receive()
        assert found == [big, News(3)]


def test_a_peer_that_does_not_read_is_given_up_at_the_bound() -> None:
    with connection() as (near, _):
        for _ in range(OUTBOX_MAX // 900_000):
            near.send(News(1, b"x" * 900_000))
        with pytest.raises(BadFrame, match="has not read"):
            near.send(News(1, b"x" * 900_000))


def test_sending_to_a_closed_peer_says_so() -> None:
    near, far = pair()
    far.close()
    with pytest.raises(PeerGone):
        near.send(Word("hello"))
    near.close()


def test_a_child_waits_until_its_words_have_left() -> None:
    with connection() as (near, far):
        words = [News(number, b"x" * 50_000) for number in range(40)]
        sender = threading.Thread(target=lambda: [far.send_and_wait(word) for word in words])
        sender.start()
        found: list[Any2] = []
        while len(found) < len(words):
            select.select([near.read_fd], [], [])
            found += near.receive()
        sender.join()
        assert found == words


def test_a_child_with_a_high_descriptor_number_can_wait_too() -> None:
    there, back = os.pipe(), os.pipe()
    high = os.dup2(there[1], 1500)  # `select` ends at 1023
    os.close(there[1])
    full = threading.Semaphore(0)

    class Watched(Pipe[Any2]):
        def flush(self) -> bool:
            done = super().flush()
            full.release()
            return done

    sender = Watched(back[0], high, Any2)
    receiver: Pipe[Any2] = Pipe(there[0], back[1], Any2)
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(sender.send_and_wait, News(1, b"x" * 100_000))
        for _ in range(2):  # once at sending, once before it waits
            full.acquire()
        found: list[Any2] = []
        while not found:
            found = receiver.receive()
        sent.result(5)
    sender.close()
    receiver.close()


# -- real processes


def test_a_child_stopped_in_mid_frame_keeps_nobody_from_hearing_the_others() -> None:
    ends = [pair() for _ in range(4)]

    def talk(far: Pipe[Any2], near: Pipe[Any2]) -> None:
        near.close()
        number = 0
        while True:
            number += 1
            far.send_and_wait(News(number, b"x" * 100_000))

    def half(far: Pipe[Any2], near: Pipe[Any2]) -> None:
        near.close()
        os.write(far.write_fd, framed(Word("half a word"))[:9])
        os.kill(os.getpid(), signal.SIGSTOP)

    with (
        forked(lambda: half(ends[0][1], ends[0][0])) as stopped,
        forked(lambda: talk(ends[1][1], ends[1][0])),
        forked(lambda: talk(ends[2][1], ends[2][0])),
        forked(lambda: talk(ends[3][1], ends[3][0])),
    ):
        for _, far in ends:
            far.close()
        os.waitpid(stopped, os.WUNTRACED)
        nears = {near.read_fd: near for near, _ in ends}
        heard = dict.fromkeys(nears, 0)
        slowest_s = 0.0
        while min(list(heard.values())[1:]) < 300:
            for fd in select.select(list(nears), [], [])[0]:
                began_s = time.monotonic()
                for message in nears[fd].receive():
                    assert isinstance(message, News)
                    heard[fd] += 1
                    assert message.number == heard[fd]
                slowest_s = max(slowest_s, time.monotonic() - began_s)
        assert heard[ends[0][0].read_fd] == 0
        assert slowest_s < 1.0, "no turn waits for anybody"
    for near, _ in ends:
        near.close()


def test_a_child_that_ends_before_it_reads_is_a_peer_that_is_gone() -> None:
    near, far = pair()
    with forked(lambda: None) as pid:
        far.close()
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(PeerGone):
            near.send(Word("hello"))
        with pytest.raises(PeerGone):
            near.receive()
    near.close()


# -- tokens


@contextmanager
def tokens() -> Iterator[tuple[Tokens, Tokens]]:
    read_fd, write_fd = os.pipe()
    worker, supervisor = Tokens(read_fd, write_fd), Tokens(os.dup(read_fd))
    try:
        yield worker, supervisor
    finally:
        worker.close()
        supervisor.close()


def test_a_number_is_taken_once() -> None:
    with tokens() as (worker, supervisor):
        worker.put(1, 3)
        assert worker.take(1)
        assert supervisor.take_all() == (2, 3)
        assert not worker.take(2)
        assert supervisor.take_all() == ()


def test_stale_numbers_are_passed_over() -> None:
    with tokens() as (worker, supervisor):
        worker.put(1, 3)
        worker.put(10, 2)
        assert worker.take(10)
        assert supervisor.take_all() == (11,)


def test_a_closed_pipe_hands_out_nothing() -> None:
    read_fd, write_fd = os.pipe()
    os.close(write_fd)
    reader = Tokens(read_fd)
    assert not reader.take(1)
    assert reader.take_all() == ()
    reader.close()


def test_a_batch_that_the_pipe_might_not_take_whole_is_a_bug() -> None:
    with tokens() as (worker, _), pytest.raises(AssertionError):
        worker.put(1, 513)


def test_two_processes_that_read_at_once_share_out_every_number_exactly_once() -> None:
    rounds, count = 300, 100
    report_read, report_write = os.pipe()
    ready_read, ready_write = os.pipe()
    next_read, next_write = os.pipe()
    with tokens() as (worker, supervisor):

        def work() -> None:
            with open(report_write, "wb", closefd=False) as report:
                for turn in range(rounds):
                    first = 1 + turn * count
                    worker.put(first, count)
                    os.write(ready_write, b".")
                    mine = [n for n in range(first, first + count) if worker.take(n)]
                    report.write(msgspec.msgpack.encode(mine).rjust(1000, b"\xc0"))
                    report.flush()
                    os.read(next_read, 1)

        taken_by_us = 0
        with forked(work), open(report_read, "rb", closefd=False) as report:
            for turn in range(rounds):
                os.read(ready_read, 1)
                if turn % 3:
                    deadline = time.perf_counter_ns() + turn * 100  # at another moment every time
                    while time.perf_counter_ns() < deadline:
                        pass
                ours: list[int] = list(supervisor.take_all())
                data = report.read(1000)
                theirs: Any = msgspec.msgpack.decode(data.lstrip(b"\xc0"))
                numbers = list(range(1 + turn * count, 1 + (turn + 1) * count))
                assert sorted(ours + theirs) == numbers, f"round {turn}"
                taken_by_us += len(ours)
                os.write(next_write, b".")
    assert 0 < taken_by_us < rounds * count, "both had some"
    for fd in (report_read, report_write, ready_read, ready_write, next_read, next_write):
        os.close(fd)
