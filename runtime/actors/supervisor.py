"""The supervisor actor: forks, watches, times and kills. No user code, no database connection, no threads.

One place blocks: the selector. What it finds becomes events for the rules, and what the rules answer is done
here, at once and without waiting. A process's death is learnt from the kernel; before it is told to the
rules, everything that the process has said and left is read.
"""

from __future__ import annotations

import gc
import os
import random
import selectors
import signal
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from setproctitle import setproctitle

from runtime.edges import clock, log, processes, signals
from runtime.edges.output import PIPE_BYTES, Lines
from runtime.edges.processes import Child, Lifeline, Main, Method, Shared
from runtime.errors import BadFrame, EmbeddedError, PeerGone
from runtime.model.exits import EXIT_FAILED, Exit
from runtime.model.messages import Claimed, FromChild, Held, Progressed, Report
from runtime.rules import fleet
from runtime.rules import supervisor as rules
from runtime.rules.attempts import Glance, Remains
from runtime.rules.fleet import POSTGRES

HASTEN_EVERY_S = 2.0  # how often the embedded database is asked whether it is stopping, when anything happens
STRANGERS_S = 0.1  # that the deaths of what a child has left are waited for, while all else stands still
NAMED_MAX = 1000  # newest claims of a worker that are remembered by name: output of ended ones may yet come


class Database(Protocol):
    """The embedded PostgreSQL, as far as its supervisor cares."""

    @property
    def pid(self) -> int: ...

    def restart(self) -> bool: ...

    def hasten(self) -> None: ...


class Role(msgspec.Struct, frozen=True):
    """What a kind of child runs."""

    main: Main
    spec: Any


class Supervisor:
    """The shell around `rules/supervisor.py`. `run` once."""

    def __init__(
        self,
        settings: fleet.Settings,
        roles: Mapping[str, Role],
        *,
        method: Method = "fork",
        log_fd: int = 2,
        database: Database | None = None,
        lifeline: Lifeline | None = None,
    ) -> None:
        """Make ready to run `roles`, by the names of the children; `lifeline` ends with the guardian."""
        self._state = fleet.initial(settings)
        self._roles = roles
        self._method = method
        self._log_fd = log_fd
        self._database = database
        self._lifeline = lifeline
        self._selector = selectors.DefaultSelector()
        self._signals = signals.Signals()
        self._children: dict[str, Child] = {}
        self._shared = {name: Shared() for name in roles}
        self._named: dict[str, dict[int, Held]] = {name: {} for name in roles}
        self._inherited = processes.children()  # not ours to end
        self._database_pidfd: int | None = None
        self._out_of_memory = processes.out_of_memory_count()
        self._hasten_at_s = 0.0
        self._code: int | None = None

    def run(self) -> int:
        """Supervise until told to stop; the exit code of the service."""
        processes.adopt_orphans()
        setproctitle("tenure: supervisor")
        gc.freeze()  # no collection of a child's walks over what it shares with us: that would copy it all
        self._selector.register(self._signals.fd, selectors.EVENT_READ, ("signals", ""))
        if self._lifeline is not None:
            self._selector.register(self._lifeline.fd, selectors.EVENT_READ, ("lifeline", ""))
        self._watch_database()
        self._feed(fleet.Begun())
        while self._code is None:
            self._turn()
        for child in self._children.values():  # a forced stop may leave one in its last moment
            processes.send_signal(child, signal.SIGKILL)
        processes.end_strangers(self._spared(), alive_too=True)
        self._signals.close()
        return self._code

    def _turn(self) -> None:
        wait_s = max(rules.next_at(self._state) - clock.now_s(), 0.0)
        ready = self._selector.select(min(wait_s, 3600.0))
        # The dead first, each after its last words: else a limit of theirs may seem to have passed alive.
        for key, _ in ready:
            what, name = key.data
            if what == "sentinel":
                self._on_end(name)
        for key, mask in ready:
            what, name = key.data
            if what == "signals":
                self._on_signals()
            elif what == "lifeline":
                log.event("error", "guardian.died", then="all processes of the service end")
                self._code = EXIT_FAILED
            elif what != "sentinel" and key.fd in self._selector.get_map():
                self._on_child(what, name, mask)
        if self._database is not None and clock.now_s() >= self._hasten_at_s:
            self._hasten_at_s = clock.now_s() + HASTEN_EVERY_S
            self._database.hasten()
        self._feed(fleet.Tick())

    # -- events

    def _feed(self, event: fleet.Event) -> None:
        """Take an event to the rules and carry out the effects; their answers are the next events."""
        events = deque([event])
        while events and self._code is None:
            _, effects = rules.step(self._state, events.popleft(), clock.now_s())
            for effect in effects:
                answer = self._do(effect)
                if answer is not None:
                    events.append(answer)

    def _on_signals(self) -> None:
        came = self._signals.read()
        if came & set(signals.STOP):
            self._feed(fleet.Asked("stop"))
        if signals.RELOAD in came:
            self._feed(fleet.Asked("reload"))
        if signals.CHILD in came:
            processes.end_strangers(self._known(), alive_too=False)

    def _on_child(self, what: str, name: str, mask: int) -> None:
        if what == "output":
            self._read_output(name)
            return
        if mask & selectors.EVENT_WRITE:
            self._flush(name)
        if mask & selectors.EVENT_READ:
            self._read_messages(name)

    def _read_messages(self, name: str) -> bool:
        """Hear what a child has said; whether there may be more."""
        child = self._children[name]
        try:
            messages = child.pipe.receive()
        except PeerGone:
            self._unwatch(child.pipe.read_fd)  # its death is told by the kernel
            return False
        except BadFrame as error:
            self._unwatch(child.pipe.read_fd)
            self._feed(fleet.Garbled(name, str(error)))
            return False
        for message in messages:
            if isinstance(message, Claimed):
                self._remember(name, message)
            self._feed(fleet.Heard(name, message))
        return bool(messages)

    def _remember(self, name: str, message: Claimed) -> None:
        named = self._named[name]
        named.update(enumerate(message.claims, message.first))
        while len(named) > NAMED_MAX:
            del named[next(iter(named))]

    def _read_output(self, name: str) -> bool:
        child = self._children[name]
        shared = self._shared[name]
        before = shared.board.number
        try:
            data = os.read(child.output_fd, PIPE_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._unwatch(child.output_fd)
            return False
        after, begun = shared.board.number, shared.board.begun
        self._read_messages(name)  # a job prints after its claim was told
        self._log_output(name, child.capture.feed(data, before, after, begun=begun))
        return True

    def _log_output(self, name: str, lines: Lines) -> None:
        for number, line in lines:
            job = self._named[name].get(number)
            if job is not None:
                log.event("info", "job.output", job=job.lease.id, kind=job.kind, line=line)
            else:
                log.event("info", "child.output", child=name, line=line)

    def _on_end(self, name: str) -> None:
        if name == POSTGRES:
            self._on_database_end()
            return
        child = self._children.get(name)
        if child is None:
            return
        exit = processes.reap(child)
        if exit is None:
            return
        while self._read_messages(name):
            pass
        for _ in range(32):  # what is left in the pipe; a stranger that holds it must not keep us
            if not self._read_output(name):
                break
        shared = self._shared[name]
        self._log_output(name, child.capture.end(shared.board.number))
        struck = processes.out_of_memory_count()
        left = processes.end_strangers(self._known(), alive_too=True, wait_s=STRANGERS_S)
        exit = exit.with_left(left)
        remains = Remains(
            glance=self._glance(name, memory=False),
            settlements=shared.board.journal(),
            output_tail=child.capture.last_words(),
            stack=shared.stacks(),
            out_of_memory=exit.signal == signal.SIGKILL and struck > self._out_of_memory,
        )
        self._out_of_memory = struck
        for fd in (child.sentinel, child.pipe.read_fd, child.output_fd):
            self._unwatch(fd)
        self._unwatch(child.pipe.write_fd)
        del self._children[name]
        child.close()
        self._feed(fleet.Exited(name, exit, remains, random.random()))

    # -- effects

    def _do(self, effect: fleet.Effect) -> fleet.Event | None:
        match effect:
            case fleet.Spawn(name):
                return self._spawn(name)
            case fleet.Say(name, message):
                self._say(name, message)
            case fleet.Kill(name):
                if name in self._children:
                    processes.send_signal(self._children[name], signal.SIGKILL)
            case fleet.Look(name, memory):
                return fleet.Looked(name, self._glance(name, memory=memory))
            case fleet.Revoke(name):
                taken = self._children[name].tokens.take_all() if name in self._children else ()
                return fleet.Taken(name, taken)
            case fleet.Warn(name, number, why):
                self._shared[name].board.warn(number, why)
                if why in ("timeout", "stall") and name in self._children:
                    processes.signal_runner(self._children[name], self._shared[name], signals.SOFT)
            case fleet.Hold(name, number, until_s):
                self._shared[name].board.hold(number, int(until_s * 1e9))
            case fleet.DumpStacks(name):
                self._shared[name].clear_stacks()
                if name in self._children:
                    processes.signal_runner(self._children[name], self._shared[name], signals.STACKS)
            case fleet.Log(level, event, fields):
                log.event(level, event, **fields)
            case fleet.Finish(code):
                self._code = code
        return None

    def _spawn(self, name: str) -> fleet.Event:
        if name == POSTGRES:
            return self._restart_database()
        role = self._roles[name]
        try:
            child = processes.start(
                name, role.main, role.spec, self._shared[name], FromChild, self._method, self._log_fd
            )
        except OSError as error:
            return fleet.SpawnFailed(name, str(error), random.random())
        self._children[name] = child
        self._named[name].clear()  # a new process counts from 1 again
        self._selector.register(child.pipe.read_fd, selectors.EVENT_READ, ("pipe", name))
        self._selector.register(child.output_fd, selectors.EVENT_READ, ("output", name))
        self._selector.register(child.sentinel, selectors.EVENT_READ, ("sentinel", name))
        return fleet.Spawned(name, child.pid)

    def _say(self, name: str, message: Any) -> None:
        child = self._children.get(name)
        if child is None:
            return
        newest_only = isinstance(message, Progressed | Report)
        try:
            child.pipe.send(message, replaces=type(message).__name__ if newest_only else None)
        except PeerGone:
            return  # its death is told by the kernel
        except BadFrame as error:
            processes.send_signal(child, signal.SIGKILL)
            log.event("error", "child.deaf", child=name, reason=str(error))
            return
        self._watch_writing(name)

    def _flush(self, name: str) -> None:
        try:
            self._children[name].pipe.flush()
        except PeerGone:
            self._unwatch(self._children[name].pipe.write_fd)
            return
        self._watch_writing(name)

    def _watch_writing(self, name: str) -> None:
        pipe = self._children[name].pipe
        watched = pipe.write_fd in self._selector.get_map()
        if pipe.is_flushed and watched:
            self._selector.unregister(pipe.write_fd)
        elif not pipe.is_flushed and not watched:
            self._selector.register(pipe.write_fd, selectors.EVENT_WRITE, ("pipe", name))

    def _unwatch(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def _glance(self, name: str, *, memory: bool) -> Glance:
        shown = self._shared[name].board.read()
        child = self._children.get(name)
        if child is not None and self._method == "forkserver":
            processes.note_usage(child)
        resident = 0
        if memory and child:
            resident = processes.resident_bytes(processes.runner_of(child, self._shared[name]))
        return Glance(
            number=shown.number,
            started_s=shown.started_ns / 1e9,
            cpu_s=shown.cpu_ns / 1e9,
            progress_s=shown.progressed_ns / 1e9,
            progress=shown.progress,
            memory_bytes=resident,
            settles=shown.settles,
        )

    def _known(self) -> set[int]:
        return {child.pid for child in self._children.values()} | self._spared()

    def _spared(self) -> set[int]:
        """Children that are not ours to end."""
        return self._inherited | ({self._database.pid} if self._database else set())

    # -- the embedded database

    def _watch_database(self) -> None:
        if self._database is None or not hasattr(os, "pidfd_open"):
            return
        try:
            self._database_pidfd = os.pidfd_open(self._database.pid)
        except ProcessLookupError:
            self._feed(fleet.Exited(POSTGRES, Exit(), Remains(), random.random()))
            return
        self._selector.register(self._database_pidfd, selectors.EVENT_READ, ("sentinel", POSTGRES))

    def _restart_database(self) -> fleet.Event:
        assert self._database is not None
        try:
            if not self._database.restart():
                return fleet.SpawnFailed(POSTGRES, "the old one is still ending", random.random())
        except EmbeddedError as error:
            return fleet.SpawnFailed(POSTGRES, str(error), random.random())
        self._watch_database()
        return fleet.Spawned(POSTGRES, self._database.pid)

    def _on_database_end(self) -> None:
        assert self._database is not None
        if self._database_pidfd is None:
            return
        self._unwatch(self._database_pidfd)
        os.close(self._database_pidfd)
        self._database_pidfd = None
        self._feed(fleet.Exited(POSTGRES, Exit(), Remains(), random.random()))
