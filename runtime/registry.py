"""The kinds of a program: how a class becomes one, and how the modules that define them are found.

Modules of handlers are user code: `load` imports each by itself and turns what one raises into text.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import msgspec

from runtime.definition import CRASHES_MAX, NO_RETRY, Check, Definition, J, Job, Retry, name_of, short_name
from runtime.errors import ConfigError, DefinitionError, PayloadInvalid, UnknownKind
from runtime.model.jobs import DEFAULT_PRIORITY, DEFAULT_QUEUE, PRIORITIES, Kick, Missed, NewSchedule, Overlap
from runtime.model.reach import Filesystem
from runtime.model.units import clip
from runtime.model.worktables import WorkTable
from runtime.rules.kicks import cycle_through
from runtime.rules.schedule import Schedule

REASON_CHARS = 4_000  # of why a module could not be imported


class Registry:
    """The kinds of a program."""

    def __init__(self, definitions: Iterable[Definition] = ()) -> None:
        self._by_kind: dict[str, Definition] = {}
        self._by_class: dict[type[Job], Definition] = {}
        for definition in definitions:
            self.add(definition)

    def add(self, definition: Definition) -> None:
        """Bind a kind to its class; the same class of the same file again, under any module name, is no clash.

        Raises:
            DefinitionError: another class has this kind.
        """
        other = self._by_kind.get(definition.kind)
        if other and _identity(other.cls) != _identity(definition.cls):
            raise DefinitionError(
                f"kind {definition.kind!r} is defined twice, by {name_of(other.cls)} and {name_of(definition.cls)}; "
                "give one of them another kind"
            )
        self._by_kind[definition.kind] = definition
        self._by_class[definition.cls] = definition

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(sorted(self._by_kind))

    def get(self, kind: str) -> Definition:
        """The definition of a kind.

        Raises:
            UnknownKind: no handler of this program has it.
        """
        try:
            return self._by_kind[kind]
        except KeyError:
            raise UnknownKind(kind, self.kinds) from None

    def definition_of(self, job_or_cls: Job | type[Job]) -> Definition:
        """The definition of a job or its class.

        Raises:
            DefinitionError: it is no class under `@job`; the text says what to write.
        """
        cls = job_or_cls if isinstance(job_or_cls, type) else type(job_or_cls)
        try:
            return self._by_class[cls]
        except KeyError:
            raise DefinitionError(
                f'{name_of(cls)} has no kind; write @job("…", retry=…) above the class'
            ) from None

    def kick_of(self, kind: str) -> Kick:
        """What asks for a run of a kind.

        Raises:
            UnknownKind: no handler of this program has it.
            DefinitionError: it cannot be kicked; the text says what to write.
        """
        return self.get(kind).kick()

    def miskicking(self) -> dict[str, str]:
        """For each kind that declares kicks which cannot be, by kind: which one, and what to write."""
        kicks = {each.kind: each.kicks for each in self.definitions}
        return {
            each.kind: f"{name_of(each.cls)}: kicks={each.kicks!r}: {problem}"
            for each in self.definitions
            if (problem := self._wrong_kick(each.kind, kicks)) is not None
        }

    def _wrong_kick(self, kind: str, kicks: dict[str, tuple[str, ...]]) -> str | None:
        for target in kicks[kind]:
            if target not in kicks:
                return f'no handler has the kind {target!r}; write @job("{target}", …) above a class, or leave it out'
            try:
                self.kick_of(target)
            except (DefinitionError, PayloadInvalid) as error:
                return str(error)
        cycle = cycle_through(kind, kicks)
        return f"they go round in a cycle, {' → '.join(cycle)}; leave one of them out" if cycle else None

    @property
    def definitions(self) -> tuple[Definition, ...]:
        return tuple(self._by_kind[kind] for kind in self.kinds)

    @property
    def schedules(self) -> tuple[NewSchedule, ...]:
        """Those declared with the kinds."""
        return tuple(each.schedule for each in self.definitions if each.schedule is not None)

    def without_kinds(self, kinds: Iterable[str]) -> Registry:
        """The same, less these kinds."""
        gone = set(kinds)
        return Registry(each for each in self._by_class.values() if each.kind not in gone)

    def without(self, modules: Iterable[str]) -> Registry:
        """The same, less the kinds that these modules define."""
        gone = set(modules)
        return Registry(each for each in self._by_class.values() if each.cls.__module__ not in gone)


DEFINED = Registry()  # what `job` has defined in this process


def job(
    kind: str,
    *,
    retry: Retry,
    timeout: float | None = None,
    queue: str = DEFAULT_QUEUE,
    priority: int = DEFAULT_PRIORITY,
    max_crashes: int = 3,
    on_crash: Literal["retry", "dead"] = "retry",
    stall_after: float | None = None,
    memory_limit: int | str | None = None,
    final: tuple[type[BaseException], ...] = (),
    kicks: tuple[str, ...] = (),
    schedule: Schedule | None = None,
    overlap: Overlap | None = None,
    missed: Missed | None = None,
    rights: tuple[str, ...] | None = None,
    egress: tuple[str, ...] | None = None,
    filesystem: Filesystem | None = None,
) -> Callable[[type[J]], type[J]]:
    """Define a kind of job by a class: its fields are the payload, its method `run` is the work.

    Args:
        kind: the name in the database, at most 64 bytes; jobs already queued keep it, so it should not change.
        retry: what happens after a failure: `NO_RETRY`, or `Retry(times, exponential(first, cap))`.
        timeout: seconds one attempt may take, at most a day, after which it is killed; None: `worker.timeout` of the settings.
        priority: 0, the most urgent, to 9.
        max_crashes: how many times the process may die under a job before the job is dead.
        on_crash: "dead" for work that must not be repeated when its process died in the middle.
        stall_after: seconds without progress after which an attempt is killed; None: no such limit.
        memory_limit: resident memory above which an attempt is killed, in bytes or such as "512MiB".
        final: exceptions after which no retry helps.
        kicks: the kinds of which a handler of this kind may start a run, by `ctx.kick`; no kind may come back to
            itself along them, and all fields of what is kicked need defaults.
        schedule: runs the job by the clock, `cron("0 3 * * *", zone="Europe/Berlin")` or `every("10m")`; all its
            fields need defaults then, and the next two options must be given.
        overlap: "skip": a tick while the last run is on does not happen; "queue": it waits in line.
        missed: "drop" or "catch_up": ticks whose time has passed do not run, or run once for all.
        rights: all that `ctx.right` gives, such as ("outbox.write",); without one that ends in ".read" or ".write"
            it has no database. None: every right.
        egress: the only origins it may connect to, such as ("https://api.example.com",); None: any.
        filesystem: the only paths it may open, `Filesystem(read=(…), write=(…))`; None: any.

    Raises:
        DefinitionError: names the class, the option or field, and what to write.
    """

    def define(cls: type[J]) -> type[J]:
        if not (isinstance(cls, type) and issubclass(cls, Job)):
            raise DefinitionError(
                f"{name_of(cls)}: @job belongs above a class; write class {short_name(cls)}(Job)"
            )
        check = Check(cls)
        check.kind(kind)
        check.retry(retry)
        check.timeout(kind, timeout)
        check.queue(queue)
        check.whole("priority", priority, 0, PRIORITIES - 1)
        check.whole("max_crashes", max_crashes, 1, CRASHES_MAX)
        check.seconds("stall_after", stall_after, above=0.0)
        if on_crash not in ("retry", "dead"):
            raise check.refused("on_crash", on_crash, 'write "retry" or "dead"')
        check.final(final)
        if final and retry == NO_RETRY:
            raise check.refused("final", final, "leave it out: with NO_RETRY every failure is the last")
        check.run(cls)
        check.version(cls)
        check.kicks(kicks)
        check.schedule(schedule, overlap, missed)
        definition = Definition(
            kind=kind,
            cls=cls,
            retry=retry,
            timeout_s=timeout,
            queue=queue,
            priority=priority,
            final=final,
            stall_s=stall_after,
            max_crashes=max_crashes,
            crash_retries=on_crash == "retry",
            memory_bytes=check.memory(memory_limit),
            decoder=check.decoder(cls),
            needs=check.needs(cls),
            reach=check.reach(rights, egress, filesystem),
            kicks=tuple(dict.fromkeys(kicks)),
        )
        if schedule is not None and overlap is not None and missed is not None:
            declared = NewSchedule(
                name=kind,
                kind=kind,
                spec=msgspec.json.encode(schedule).decode(),
                payload=definition.encode(check.defaults(cls)),
                queue=queue,
                priority=priority,
                overlap=overlap,
                missed=missed,
                declared=True,
            )
            definition = replace(definition, schedule=declared)
        DEFINED.add(definition)
        return cls

    return define


def load(names: Sequence[str]) -> tuple[Registry, dict[str, str]]:
    """Import modules, and packages with every module in them, sub-packages and plain directories too.

    Returns:
        All kinds defined by then, also by earlier imports; and what is wrong: for each module that could not be
        imported the reason, by its name, and for each kind that declares wrong kicks, by "kind KIND". The kinds of
        such a module are left out: it stopped half-way, so its handlers may lack what stands further down. So are
        such kinds. A package's `__main__` is a program and is not imported.
    """
    importlib.invalidate_caches()  # a module may have been written since a directory was last read
    broken: dict[str, str] = {}
    for name in names:
        _import_all(name, broken, set())
    found = DEFINED.without(broken)
    wrong = found.miskicking()
    return found.without_kinds(wrong), broken | {f"kind {kind}": problem for kind, problem in wrong.items()}


def hook(field: str, name: str) -> Callable[..., Any] | None:
    """The function that a setting names as "module:function"; None for an empty name.

    Raises:
        ConfigError: names the setting `field`, and says why there is no such function.
    """
    if not name:
        return None
    module, _, function = name.partition(":")
    broken: dict[str, str] = {}
    found = getattr(_import(module, broken), function, None)
    if broken:
        raise ConfigError(field, f"{module} could not be imported: {broken[module].splitlines()[-1]}")
    if not callable(found):
        raise ConfigError(field, f"{module} has no function {function!r}")
    return found  # type: ignore[no-any-return]


def work_tables(names: Sequence[str]) -> dict[str, WorkTable]:
    """The work tables that imported modules of these names, or below them, have as their globals; by their name.

    Raises:
        DefinitionError: two of them have one name and are not the same.
    """
    found: dict[str, WorkTable] = {}
    for module_name, module in sorted(sys.modules.items()):
        if not any(f"{module_name}.".startswith(f"{name}.") for name in names):
            continue
        for table in vars(module).values():
            if isinstance(table, WorkTable) and found.setdefault(table.name, table) != table:
                raise DefinitionError(f"there are two WorkTable({table.name!r}) that differ; keep one")
    return found


def search_path(config_path: Path | None) -> list[str]:
    """What callers put in front of `sys.path`: the directory of the configuration file, the current directory.

    A file in a directory `configs` speaks for the directory above it, which comes first then.
    """
    directories = [config_path.absolute().parent] if config_path else []
    if directories and directories[0].name == "configs":
        directories.insert(0, directories[0].parent)
    return list(dict.fromkeys(str(directory) for directory in [*directories, Path.cwd()]))


# -- the modules of handlers


def _import_all(name: str, broken: dict[str, str], seen: set[Path]) -> None:
    module = _import(name, broken)
    if module is None:
        return
    paths = [Path(entry).resolve() for entry in getattr(module, "__path__", ())]
    for path in paths:
        if path not in seen:  # a link may lead back into its own directory
            seen.add(path)
            for child in _children(path):
                _import_all(f"{name}.{child}", broken, seen)


def _children(path: Path) -> list[str]:
    """The modules, packages and plain directories in a directory of modules."""
    children = {found.name for found in pkgutil.iter_modules([str(path)])} - {"__main__"}
    if path.is_dir():
        children |= {each.name for each in path.iterdir() if each.is_dir() and each.name.isidentifier()}
    return sorted(children - {"__pycache__"})


def _import(name: str, broken: dict[str, str]) -> ModuleType | None:
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - user code: whatever it raises is turned into text
        broken[name] = clip(_reason(name, error), REASON_CHARS)
        return None
    if shadowed := _shadowed(name, module):
        broken[name] = f"{shadowed} has no __init__.py, so Python took {module.__file__}; add an empty one"
        return None
    return module


def _reason(name: str, error: BaseException) -> str:
    """Where and why an import failed: the last line in the module, the last line at all, the exception."""
    if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
        return f"no module {error.name!r} on sys.path: {', '.join(sys.path)}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_theirs(frame.filename)]
    spec_file = frames[0].filename if frames else None
    own = [frame for frame in frames if frame.filename == spec_file][-1:]
    last = frames[-1:] if frames[-1:] != own else []
    lines = [*traceback.format_list([*own, *last]), *traceback.format_exception_only(error)]
    return "".join(lines).strip()


def _is_theirs(filename: str) -> bool:
    return not filename.startswith("<frozen") and filename not in (__file__, importlib.__file__)


def _shadowed(name: str, module: ModuleType) -> Path | None:
    """The directory of this name that comes earlier on `sys.path` than the package that was imported."""
    if "." in name or not getattr(module, "__file__", None):
        return None
    taken = Path(str(module.__file__)).resolve().parent
    for entry in sys.path:
        directory = Path(entry or ".").resolve() / name
        if taken in (directory, directory.parent):
            return None
        if next(directory.glob("*.py"), None):
            return directory
    return None


def _identity(cls: type[Job]) -> tuple[str, str]:
    """Where a class stands: the same for a file that runs as `__main__` and is imported by its name too."""
    module = sys.modules.get(cls.__module__)
    return getattr(module, "__file__", None) or cls.__module__, cls.__qualname__
