"""What goes wrong, and when: drawn once for a run, some at a moment, some in ambush at a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runtime.model.exits import Exit
from runtime.rules.fleet import Garbled
from runtime.sim.database import Database
from runtime.sim.node import Node, Supervisor
from runtime.sim.scheduler import Scheduler
from runtime.sim.worker import Worker
from runtime.sim.world import Process, World

WORKER_STEPS = (
    "set-up", "told", "sent", "token", "board", "clock", "handler", "journal", "cleared", "exchange", "settle", "replied",
    "lost", "waited", "warned",
)  # fmt: skip
LATE_S = (0.2, 3.0)  # a supervisor is late by so much
LATE_IN_A_CROWD_S = (1.0, 1.5)  # batches grow too old for it meanwhile, but leases do not end
SCHEDULER_STEPS = ("told", "replied", "sent", "notified", "lost")


class Faults:
    """The faults of one run.

    Args:
        quiet: nothing goes wrong but that workers die and supervisors are late.
        crowded: that, and above all the latter.
    """

    def __init__(
        self,
        world: World,
        nodes: Sequence[Node],
        database: Database,
        ids: Sequence[str],
        *,
        quiet: bool,
        crowded: bool,
    ) -> None:
        self.quiet = quiet
        self.crowded = crowded
        self.world = world
        self.nodes = nodes
        self.database = database
        self.ids = ids

    def draw(self, until_s: float) -> None:
        """Decide what goes wrong before `until_s`, and that nothing does afterwards."""
        chance = self.world.chance
        deaths = [self.strike_worker, self.strike_worker, self.strike_supervisor, self.strike_scheduler]
        ambushes = [self.lie_in_ambush] * 6
        absences = [self.stop_node, self.cut_off, self.cut_off, self.stop_scheduler, self.stop_worker]
        absences += [self.blink, self.blink_at_an_exchange, self.freeze_at_a_start, self.freeze_at_a_start]
        delays = [self.delay_supervisor, self.delay_supervisor_at_a_claim]
        absences += delays
        orders = [self.stop_service, self.stop_service_at_once, self.reload, self.cancel, self.cancel]
        accidents = [self.garble, self.break_starts]
        some = chance.choice((0, 2, 4, 6, 9))
        if self.crowded:
            kinds, some = [self.delay_supervisor_at_a_claim] * 5 + [self.strike_worker], 4
        elif self.quiet:
            kinds = [self.strike_worker, self.strike_worker_in_ambush, *delays]
        else:
            kinds = chance.choice(
                (
                    deaths + ambushes + absences + orders + accidents,
                    deaths + ambushes,
                    absences,
                    orders + deaths + ambushes,
                )
            )
        for fault in chance.choices(kinds, k=some):
            self.world.at(until_s * chance.random(), self._strike, fault)
        self.world.at(until_s, self.cease)

    def _strike(self, fault: Callable[[], None]) -> None:
        name = fault.__name__.replace("_", " ")
        self.world.faults[name] += 1
        self.world.say("fault", name)
        fault()

    def cease(self) -> None:
        self.world.ambushes.clear()
        self.database.calm = True
        for node in self.nodes:
            node.go_on()
            node.supervisor.bad_starts.clear()
            for process in node.supervisor.processes():
                process.go_on()

    # -- whom it hits

    def _node(self) -> Node:
        return self.world.chance.choice(self.nodes)

    def _worker(self) -> Worker | None:
        workers = [worker for node in self.nodes for worker in node.supervisor.workers if worker.alive]
        busy = [worker for worker in workers if worker.running]
        if busy and self.world.chance.random() < 0.7:
            return self.world.chance.choice(busy)
        return self.world.chance.choice(workers) if workers else None

    def _scheduler(self) -> Scheduler | None:
        return self._node().supervisor.scheduler

    # -- what it does

    def strike_worker(self) -> None:
        worker = self._worker()
        if worker is not None:
            worker.die(Exit(signal=9))

    def strike_supervisor(self) -> None:
        self._node().supervisor.die()

    def strike_scheduler(self) -> None:
        scheduler = self._scheduler()
        if scheduler is not None:
            scheduler.die(Exit(signal=9))

    def stop_scheduler(self) -> None:
        self._pause(self._scheduler())

    def stop_worker(self) -> None:
        self._pause(self._worker())

    def delay_supervisor(self) -> None:
        self._delay(self._node().supervisor)

    def delay_supervisor_at_a_claim(self) -> None:
        """One worker's supervisor is late from when that has claimed jobs."""
        step = self.world.chance.choice(("sent", "token", "handler"))
        self.world.ambushes[Worker, step] = lambda process: self._delay(self._node_of(process).supervisor)

    def _delay(self, supervisor: Supervisor) -> None:
        self.world.faults["late supervisor"] += 1
        least_s, most_s = LATE_IN_A_CROWD_S if self.crowded else LATE_S
        supervisor.be_late()
        self.world.at(self.world.now_s + self.world.chance.uniform(least_s, most_s), self._resume, supervisor)

    def _pause(self, process: Process | None) -> None:
        if process is not None:
            process.stop()
            self.world.at(self.world.now_s + self._long_s(), self._resume, process)

    def _resume(self, process: Process) -> None:
        if not any(
            node.stopped_s is not None and process in node.supervisor.processes() for node in self.nodes
        ):
            process.go_on()

    def stop_node(self) -> None:
        self._freeze(self._node(), self._long_s())

    def _long_s(self) -> float:
        return self.world.chance.choice((0.1, 1.0, 3.0, 5.0)) * self.world.chance.random()

    def cut_off(self) -> None:
        """The database is away for one node, or for all."""
        nodes = self.nodes if self.world.chance.random() < 0.4 else [self._node()]
        cut = self.database.go_away([node.supervisor.node for node in nodes], self._long_s())
        for client in cut:
            if isinstance(client, Scheduler):
                client.lose_connection()

    def blink(self) -> None:
        """One node loses all its connections, and can connect again almost at once."""
        self.database.go_away([self._node().supervisor.node], 0.01)

    def blink_at_an_exchange(self) -> None:
        """The same, while a worker's statement is under way."""
        step = self.world.chance.choice(("exchange", "settle"))
        self.world.ambushes[Worker, step] = lambda process: self._blink(self._node_of(process))

    def _blink(self, node: Node) -> None:
        self.world.at(self.world.now_s + 0.001, self.database.go_away, [node.supervisor.node], 0.01)

    def freeze_at_a_start(self) -> None:
        """A node is stopped, for longer than a lease, just when one of its workers begins a job."""
        step = self.world.chance.choice(("sent", "token", "board", "clock", "handler"))
        for_s = self.world.chance.uniform(2.2, 4.5)
        self.world.ambushes[Worker, step] = lambda process: self._freeze_at_start(process, for_s)

    def _freeze_at_start(self, process: Process, for_s: float) -> None:
        self.world.faults["frozen at a start"] += 1
        self._freeze(self._node_of(process), for_s)

    def _freeze(self, node: Node, for_s: float) -> None:
        node.stop()
        self.world.at(self.world.now_s + for_s, node.go_on)

    def _node_of(self, process: Process) -> Node:
        return next(node for node in self.nodes if process in node.supervisor.processes())

    def stop_service(self) -> None:
        self._node().ask("stop")

    def stop_service_at_once(self) -> None:
        node = self._node()
        node.ask("stop")
        again_s = self.world.chance.choice((0.1, 0.4, 2.0))
        self.world.at(self.world.now_s + again_s, node.ask, "stop")

    def reload(self) -> None:
        self._node().ask("reload")

    def cancel(self) -> None:
        self.database.store.cancel(self.world.chance.choice(self.ids))

    def garble(self) -> None:
        node = self._node()
        if node.supervisor.children:
            name = self.world.chance.choice(sorted(node.supervisor.children))
            node.supervisor.after(
                0.001, "garbled", self._send_garbage, node, name, node.supervisor.children[name]
            )

    def _send_garbage(self, node: Node, name: str, child: Process) -> None:
        if node.supervisor.children.get(name) is child:
            node.supervisor.feed(Garbled(name, "no message"))

    def break_starts(self) -> None:
        chance = self.world.chance
        starts = [None, chance.uniform(1.9, 4.0)]
        self._node().supervisor.bad_starts = chance.choices(starts, k=chance.choice((1, 3, 6)))

    def lie_in_ambush(self) -> None:
        """Hit the next process at one certain step, whoever it is."""
        chance = self.world.chance
        [what] = chance.choices(
            ("worker", "scheduler", "stop worker", "stop node", "cut off", "drain"), (8, 2, 2, 3, 2, 2)
        )
        self._wait_for(what)

    def strike_worker_in_ambush(self) -> None:
        self._wait_for("worker")

    def _wait_for(self, what: str) -> None:
        role, steps = (Scheduler, SCHEDULER_STEPS) if what == "scheduler" else (Worker, WORKER_STEPS)
        step = self.world.chance.choice(steps)
        self.world.say("fault", f"waits at {step}", what)
        self.world.ambushes[role, step] = lambda process: self._spring(what, process)

    def _spring(self, what: str, process: Process) -> None:
        self.world.faults[f"ambush: {what}"] += 1
        self.world.say("fault", "springs", (what, process.name))
        node = self._node_of(process)
        match what:
            case "stop worker":
                self._pause(process)
            case "stop node":
                self._freeze(node, self._long_s())
            case "cut off":
                self.database.go_away([node.supervisor.node], self._long_s())
            case "drain":
                node.ask("stop")
            case _ if isinstance(process, Worker | Scheduler):
                process.die(Exit(signal=9))
            case _:
                pass
