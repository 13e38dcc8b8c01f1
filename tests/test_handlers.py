"""The example handlers, on files of every sort."""

from __future__ import annotations

import hashlib
import lzma
import os
import random
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog

from handlers.compress import Compress, Compressed, File
from runtime import Cancel, Context
from runtime.model.exits import Progress


class Run:
    """One run of the handler, without a service."""

    def __init__(self) -> None:
        self.reported: list[Progress] = []
        self.cancel_after = float("inf")

    def __call__(self, root: Path, *files: str) -> Compressed:
        context = Context(
            id="0", kind="compress", attempt=1, due=datetime.now(UTC), last=False, deadline=None, epoch=1,
            note_progress=self.reported.append,
            why_ending=lambda: "cancel" if len(self.reported) > self.cancel_after else None,
            kick=[].append,
            writes=None,
            log=structlog.get_logger(),
        )  # fmt: skip
        return Compress(root=str(root), files=list(files)).run(context)


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.fixture
def tree(place: Path) -> Path:
    (place / "sub").mkdir()
    (place / "sub" / "words.txt").write_text("to be or not to be\n" * 20_000)
    (place / "noise").write_bytes(os.urandom(10_000))
    (place / "empty").touch()
    return place


def test_a_file_is_compressed_and_fingerprinted(run: Run, tree: Path) -> None:
    [words, noise] = run(tree, "sub/words.txt", "noise").files
    data = (tree / "sub" / "words.txt").read_bytes()
    assert (words.path, words.bytes_in, words.problem) == ("sub/words.txt", len(data), None)
    assert words.sha256 == hashlib.sha256(data).hexdigest()
    assert words.bytes_out <= len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
    assert noise.bytes_out >= noise.bytes_in == 10_000


def test_the_better_of_the_two_chains_counts(run: Run, tree: Path) -> None:
    chance, letters = random.Random(1), bytearray(b"a")
    while len(letters) < 50_000:  # each from the half of the alphabet that the one before it decides
        letters.append(chance.choice(b"acegqsuw" if letters[-1] < ord("p") else b"bdfhrtvx"))
    (tree / "letters").write_bytes(letters)
    [found] = run(tree, "letters").files
    assert found.bytes_out < len(lzma.compress(letters, preset=9 | lzma.PRESET_EXTREME))


def test_an_empty_file_has_the_fingerprint_of_nothing(run: Run, tree: Path) -> None:
    [empty] = run(tree, "empty").files
    assert (empty.bytes_in, empty.sha256, empty.problem) == (0, hashlib.sha256().hexdigest(), None)


def test_what_is_no_file_is_reported_and_its_neighbours_are_compressed(run: Run, tree: Path) -> None:
    (tree / "link").symlink_to("noise")
    (tree / "nowhere").symlink_to("gone")
    os.mkfifo(tree / "fifo")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tree / "sock"))
    names = ["link", "nowhere", "fifo", "sock", "sub", "gone", "noise"]
    *others, noise = run(tree, *names).files
    assert others == [
        File(path="link", problem="is a symbolic link, not a file"),
        File(path="nowhere", problem="is a symbolic link, not a file"),
        File(path="fifo", problem="is a named pipe, not a file"),
        File(path="sock", problem="is a socket, not a file"),
        File(path="sub", problem="is a directory, not a file"),
        File(path="gone", problem="No such file or directory"),
    ]
    assert noise.problem is None


def test_a_file_that_cannot_be_read_is_reported(run: Run, tree: Path) -> None:
    """Root may open everything, but nobody reads the first page of a process's memory."""
    unreadable = "mem"
    [found] = run(Path("/proc/self"), unreadable).files
    assert found.path == unreadable
    assert found.problem in ("Input/output error", "Permission denied")
    if os.geteuid() != 0:
        (tree / "noise").chmod(0)
        assert run(tree, "noise").files == [File(path="noise", problem="Permission denied")]


def test_progress_tells_bytes_and_the_file(run: Run, tree: Path) -> None:
    run(tree, "noise", "sub/words.txt", "empty")
    total = 10_000 + 380_000
    assert run.reported[0] == Progress(0, total, "noise")
    assert run.reported[-1] == Progress(total, total, "empty")
    done = [each.done for each in run.reported]
    assert done == sorted(done)
    assert len(done) > 4, "also within a file"


def test_a_cancel_is_heeded_within_a_file(run: Run, tree: Path) -> None:
    run.cancel_after = 1
    with pytest.raises(Cancel):
        run(tree, "sub/words.txt")
    assert 0 < run.reported[-1].done < 380_000
