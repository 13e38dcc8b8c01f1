"""Goal: signals are facts for the supervisor and nothing for its children. Method: real signals to this process."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from runtime.edges import log, signals
from runtime.edges.signals import Signals


@contextmanager
def listening() -> Iterator[Signals]:
    before = {signum: signal.getsignal(signum) for signum in (*signals.UNHEEDED, signals.CHILD)}
    heard = Signals()
    try:
        yield heard
    finally:
        heard.close()
        for signum, handler in before.items():
            signal.signal(signum, handler)


def test_signals_make_the_descriptor_readable_and_count_once_however_often_they_came() -> None:
    with listening() as heard:
        assert heard.read() == set()
        for signum in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):
            signal.pthread_kill(threading.get_ident(), signum)
        assert select.select([heard.fd], [], [], 1)[0]
        assert heard.read() == {signal.SIGTERM, signal.SIGHUP}
        assert heard.read() == set()


def test_a_flood_of_signals_is_neither_lost_nor_an_error() -> None:
    with listening() as heard:
        for _ in range(70_000):  # more than the pipe holds
            signal.pthread_kill(threading.get_ident(), signal.SIGHUP)
        assert heard.read() == {signal.SIGHUP}


def test_a_signal_held_back_comes_afterwards() -> None:
    with listening() as heard:
        with signals.held_back():
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
            assert heard.read() == set()
        assert heard.read() == {signal.SIGTERM}


def test_only_some_signals_may_be_held_back() -> None:
    with listening() as heard:
        with signals.held_back(signals.UNHEEDED):
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
            signal.pthread_kill(threading.get_ident(), signal.SIGCHLD)
            assert heard.read() == {signal.SIGCHLD}
        assert heard.read() == {signal.SIGTERM}


def test_what_a_handler_did_to_signals_that_are_sent_to_all_is_undone() -> None:
    before = {signum: signal.getsignal(signum) for signum in signals.UNHEEDED}
    try:
        for signum in signals.UNHEEDED:
            signal.signal(signum, signal.SIG_IGN)
        signals.restore_unheeded()
        for signum in signals.UNHEEDED:
            signal.pthread_kill(threading.get_ident(), signum)
        script = "import signal; print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
        heard = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
        assert heard.stdout == b"True\n", "a handler's subprocess is not deaf"
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def test_a_log_that_nobody_reads_keeps_nobody_waiting_and_counts_what_it_drops() -> None:
    read_fd, write_fd = os.pipe()
    try:
        log.setup(write_fd, "info", "json")
        began_s = time.monotonic()
        for number in range(2000):
            log.event("info", "test.line", number=number, padding="x" * 9000)
        assert time.monotonic() - began_s < 2.0
        os.set_blocking(read_fd, False)
        text = os.read(read_fd, 10**6)
        log.event("info", "test.after")
        text += os.read(read_fd, 10**6)
        *whole, torn, dropped_line, after = text.splitlines()
        lines = [json.loads(line) for line in (*whole, dropped_line, after)]
        assert not torn.endswith(b"}"), "only the last line that found room may lack its end"
        numbers = [line["number"] for line in lines if line["event"] == "test.line"]
        assert numbers == list(range(len(numbers)))
        [dropped] = [line["lines"] for line in lines if line["event"] == "log.dropped"]
        assert len(numbers) + dropped == 2000, "the torn one is counted too"
        assert lines[-1]["event"] == "test.after"
    finally:
        log.setup(2, "info", "console")
        os.close(read_fd)
        os.close(write_fd)
