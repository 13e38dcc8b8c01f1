"""How a service stops and how it replaces its children: draining, forcing, closing, reloading.

Draining takes back what was claimed and not begun, lets running jobs end, and keeps their leases alive
meanwhile. A second stop, or the end of the grace, kills and releases. The scheduler goes last: it writes
what the others leave behind, if the database comes back within the grace. Where that is nothing, the database
is not waited for.
"""

from __future__ import annotations

from runtime.model.exits import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, Verdict
from runtime.model.messages import Stop
from runtime.rules.attempts import Intent
from runtime.rules.fleet import SCHEDULER, Effect, Finish, Log, Revoke, Say, Slot, State, Warn, kill

SECOND_STOP_S = 0.25  # stop signals closer together than this are one
FORCED_S = 1.5  # a forced stop waits so long for its releases to be written
CLOSING_S = 3.0  # and the scheduler has so long to leave


def ask_stop(state: State, now_s: float, out: list[Effect]) -> None:
    if state.phase == "running":
        state.phase = "draining"
        state.stop_asked_s = now_s
        state.stop_by_s = now_s + state.settings.grace_s
        state.warn_at_s = max(state.stop_by_s - state.settings.kill_after_s, now_s)
        out.append(Log("info", "service.drains", {"grace_s": state.settings.grace_s}))
        for slot in state.workers:
            stop_worker(slot, out)
    elif state.phase == "draining" and now_s - state.stop_asked_s >= SECOND_STOP_S:
        _force(state, now_s, EXIT_INTERRUPTED, out)


def stop_worker(slot: Slot, out: list[Effect]) -> None:
    if slot.phase == "starting":
        kill(slot, out)
        slot.phase = "stopping"
        slot.intent = Intent(Verdict.SHUTDOWN, 0, 0.0)
    elif slot.phase == "up":
        slot.phase = "stopping"
        if slot.batch:
            out.append(Revoke(slot.name))
        out.append(Say(slot.name, Stop()))


def _force(state: State, now_s: float, code: int, out: list[Effect]) -> None:
    state.phase = "forced"
    state.code = code
    state.stop_by_s = now_s + FORCED_S
    out.append(Log("warning", "service.forced", {}))
    for slot in state.workers:
        if slot.alive and not slot.killed:
            slot.intent = slot.intent or Intent(Verdict.SHUTDOWN, 0, 0.0)
            kill(slot, out)


def advance_stop(state: State, now_s: float, out: list[Effect]) -> None:
    if state.phase not in ("draining", "forced", "closing"):
        return
    if now_s >= state.warn_at_s:
        state.warn_at_s = float("inf")
        out += [
            Warn(slot.name, max(slot.batch.claims), "stop")
            for slot in state.workers
            if slot.batch and slot.batch.claims
        ]
    if state.phase != "closing" and not any(slot.alive for slot in state.workers):
        if state.phase == "draining" and not any(record.tells for record in state.records):
            state.stop_by_s = min(state.stop_by_s, now_s + FORCED_S)  # the database may be away for good
            if now_s >= state.stop_by_s:
                state.records.clear()
        if not state.records:
            _close(state, now_s, out)
    if now_s < state.stop_by_s:
        return
    if state.phase == "draining":
        _force(state, now_s, EXIT_FAILED, out)
    else:
        kill(state.scheduler, out)
        finish(state, out)


def _close(state: State, now_s: float, out: list[Effect]) -> None:
    state.phase = "closing"
    state.stop_by_s = now_s + CLOSING_S
    if state.scheduler.phase == "up":
        state.scheduler.phase = "stopping"
        out.append(Say(SCHEDULER, Stop()))
    else:
        state.stop_by_s = now_s


def finish(state: State, out: list[Effect]) -> None:
    state.phase = "finished"
    state.stop_by_s = state.warn_at_s = float("inf")
    if state.code == EXIT_OK and state.unhealthy:
        state.code = EXIT_FAILED
    out.append(Finish(state.code))


def advance_reload(state: State, out: list[Effect]) -> None:
    if state.phase != "running" or state.replacing is not None:
        return
    stale = [slot for slot in state.slots.values() if slot.stale and slot.phase == "up"]
    for slot in sorted(stale, key=lambda slot: not slot.idle)[:1]:
        state.replacing = slot.name
        if slot.name == SCHEDULER:
            slot.phase = "stopping"
            out.append(Say(SCHEDULER, Stop()))
        else:
            stop_worker(slot, out)
