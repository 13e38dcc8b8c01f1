"""Handlers by kind: how a job class is defined, checked, found, and turned into JSON and back.

What a handler is can only be wrong in two places: where it is defined, which `job` refuses with the name of the
class, the field and the remedy; and in the text of one payload, which is refused with the name of the field.
Modules of handlers are user code: `load` imports each by itself and turns what one raises into text.
"""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import inspect as types

from runtime.errors import DefinitionError, PayloadInvalid, UnknownKind
from runtime.model.jobs import DEFAULT_PRIORITY, DEFAULT_QUEUE, KIND_BYTES, PRIORITIES, QUEUE_BYTES
from runtime.model.messages import Limits
from runtime.model.units import clip, parse_size

LONGEST_S = 10 * 365 * 86400.0  # no timeout or delay may be longer: timers and timestamps must hold it
RETRIES_MAX = 100_000
CRASHES_MAX = 1_000
KEY_CHARS = 64  # of a key in a path that names a value
FACTOR_MAX = 1_000.0
TEXT_BYTES = (
    64 * 2**20
)  # of a payload or a result; larger things belong in a file, with their path in the payload
REASON_CHARS = 4_000  # of why a module could not be imported


class Job(msgspec.Struct, forbid_unknown_fields=True):
    """Base of payloads: subclass it under `@job` with typed fields and a method `run`."""

    def run(self, ctx: Any, /) -> Any:
        """Do the work; what is returned is stored as the result, as JSON."""
        raise NotImplementedError


J = TypeVar("J", bound=Job)


class Backoff(msgspec.Struct, frozen=True):
    """The delay before each retry: `first_s`, then each `factor` times the last, at most `cap_s`."""

    first_s: float
    factor: float
    cap_s: float


NO_DELAY = Backoff(0.0, 1.0, 0.0)


def fixed(seconds: float) -> Backoff:
    """The same delay before each retry."""
    return Backoff(seconds, 1.0, seconds)


def exponential(first: float, cap: float, factor: float = 2.0) -> Backoff:
    """A delay of `first` seconds that doubles with each failure, up to `cap` seconds."""
    return Backoff(first, factor, cap)


class Retry(msgspec.Struct, frozen=True):
    """How often a job that failed runs again: `Retry(3)` is four attempts in all, back to back.

    `jitter` spreads jobs that failed together: up to that share of the delay is added to it, by chance.
    """

    times: int
    backoff: Backoff = NO_DELAY
    jitter: float = 0.0


NO_RETRY = Retry(0)


_ENCODER = msgspec.json.Encoder()
_SCANNER = msgspec.json.Decoder(msgspec.Raw)  # checks that it is JSON, and makes nothing of it
_EXACT = msgspec.json.Decoder(float_hook=str)  # makes no number of what no float could hold
_UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError)  # what msgspec raises for a value


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Definition:
    """One kind: its payload class, what bounds it, and its way to JSON text and back."""

    kind: str
    cls: type[Job]
    retry: Retry
    timeout_s: float | None
    queue: str
    priority: int
    final: tuple[
        type[BaseException], ...
    ]  # a failure of these classes is the last one, whatever `retry` allows
    stall_s: float | None
    max_crashes: int
    crash_retries: bool
    memory_bytes: int | None
    decoder: msgspec.json.Decoder[Job] = field(repr=False)

    def limits(self, default_timeout_s: float) -> Limits:
        backoff = self.retry.backoff
        return Limits(
            timeout_s=self.timeout_s if self.timeout_s is not None else default_timeout_s,
            stall_s=self.stall_s,
            retries=self.retry.times,
            delay_first_s=backoff.first_s,
            delay_factor=backoff.factor,
            delay_cap_s=backoff.cap_s,
            jitter=self.retry.jitter,
            max_crashes=self.max_crashes,
            crash_retries=self.crash_retries,
            memory_bytes=self.memory_bytes,
        )

    def encode(self, job: Job) -> str:
        """JSON text of a payload, which `decode` is known to accept.

        Raises:
            PayloadInvalid: names the field whose value JSON or jsonb cannot hold, or that has the wrong type.
        """
        try:
            data = _ENCODER.encode(job)
        except _UNENCODABLE as cause:
            raise PayloadInvalid(self.kind, _first_unencodable(job) or str(cause)) from cause
        text = self._storable(job, data)
        self.decode(text)
        return text

    def decode(self, payload: str) -> Job:
        """The job of a payload.

        Raises:
            PayloadInvalid: names the field that is missing, unknown or wrong.
        """
        try:
            return self.decoder.decode(payload)
        except msgspec.ValidationError as cause:
            raise PayloadInvalid(self.kind, _named(str(cause))) from cause
        except (msgspec.DecodeError, UnicodeError) as cause:
            raise PayloadInvalid(self.kind, f"is not JSON: {cause}") from cause
        except RecursionError as cause:
            raise PayloadInvalid(self.kind, "is nested too deeply") from cause

    def encode_result(self, value: object) -> str:
        """JSON text of what a handler returned.

        Raises:
            PayloadInvalid: JSON or jsonb cannot hold it; the problem begins with "result".
        """
        if value is None:
            return "null"
        try:
            data = _ENCODER.encode(value)
        except _UNENCODABLE as cause:
            raise PayloadInvalid(self.kind, f"result: {_plainly(cause)}") from cause
        return self._storable(value, data, "result")

    def _storable(self, value: object, data: bytes, path: str = "") -> str:
        """The text of `data`, unless jsonb could not hold it or msgspec has written a null for a NaN."""
        name = path or "payload"
        if len(data) > TEXT_BYTES:
            raise PayloadInvalid(
                self.kind,
                f"{name}: has {len(data)} bytes of JSON, more than {TEXT_BYTES}; pass a path instead",
            )
        try:
            _SCANNER.decode(data)
            if b"null" in data or b"\\u0000" in data:  # only then can there be anything to find
                plain = msgspec.to_builtins(value, str_keys=True, enc_hook=_raw)
                if problem := _unstorable(plain, path):
                    raise PayloadInvalid(self.kind, problem)
        except msgspec.DecodeError as cause:
            raise PayloadInvalid(
                self.kind, f"{name}: holds a msgspec.Raw that is not JSON: {cause}"
            ) from cause
        except RecursionError as cause:
            raise PayloadInvalid(self.kind, f"{name}: is nested too deeply") from cause
        return data.decode()


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
                f"kind {definition.kind!r} is defined twice, by {_name(other.cls)} and {_name(definition.cls)}; "
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
                f'{_name(cls)} has no kind; write @job("…", retry=…) above the class'
            ) from None

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
) -> Callable[[type[J]], type[J]]:
    """Define a kind of job by a class: its fields are the payload, its method `run` is the work.

    Args:
        kind: the name in the database, at most 64 bytes; jobs already queued keep it, so it should not change.
        retry: what happens after a failure: `NO_RETRY`, or `Retry(times, exponential(first, cap))`.
        timeout: seconds one attempt may take, after which it is killed; None: `worker.timeout` of the settings.
        priority: 0, the most urgent, to 9.
        max_crashes: how many times the process may die under a job before the job is dead.
        on_crash: "dead" for work that must not be repeated when its process died in the middle.
        stall_after: seconds without progress after which an attempt is killed; None: no such limit.
        memory_limit: resident memory above which an attempt is killed, in bytes or such as "512MiB".
        final: exceptions after which no retry helps.

    Raises:
        DefinitionError: names the class, the option or field, and what to write.
    """

    def define(cls: type[J]) -> type[J]:
        if not (isinstance(cls, type) and issubclass(cls, Job)):
            raise DefinitionError(f"{_name(cls)}: @job belongs above a class; write class {_short(cls)}(Job)")
        check = _Check(cls)
        check.kind(kind)
        check.retry(retry)
        check.seconds("timeout", timeout, above=0.0)
        check.queue(queue)
        check.whole("priority", priority, 0, PRIORITIES - 1)
        check.whole("max_crashes", max_crashes, 1, CRASHES_MAX)
        check.seconds("stall_after", stall_after, above=0.0)
        if on_crash not in ("retry", "dead"):
            raise check.refused("on_crash", on_crash, 'write "retry" or "dead"')
        check.final(final)
        check.run(cls)
        DEFINED.add(
            Definition(
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
            )
        )
        return cls

    return define


def load(names: Sequence[str]) -> tuple[Registry, dict[str, str]]:
    """Import modules, and packages with every module in them, sub-packages and plain directories too.

    Returns:
        All kinds defined by then, also by earlier imports; and for each module that could not be imported the
        reason, by its name. The kinds of such a module are left out: it stopped half-way, so its handlers may lack
        what stands further down. A package's `__main__` is a program and is not imported.
    """
    importlib.invalidate_caches()  # a module may have been written since a directory was last read
    broken: dict[str, str] = {}
    for name in names:
        _import_all(name, broken, set())
    return DEFINED.without(broken), broken


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


# -- what a definition must be


class _Check:
    """The rules of a definition; each method raises DefinitionError, naming the class, unless its rule holds."""

    def __init__(self, cls: type[Job]) -> None:
        self.name = _name(cls)

    def refused(self, option: str, value: object, remedy: str) -> DefinitionError:
        return DefinitionError(f"{self.name}: {option}={value!r}: {remedy}")

    def kind(self, kind: str) -> None:
        if not _is_visible(kind, KIND_BYTES):
            raise self.refused("kind", kind, f"write a text of 1 to {KIND_BYTES} bytes without spaces")

    def queue(self, queue: str) -> None:
        if not _is_visible(queue, QUEUE_BYTES):
            raise self.refused("queue", queue, f"write a text of 1 to {QUEUE_BYTES} bytes without spaces")
        if queue.startswith("@") or queue == "*":
            raise self.refused("queue", queue, 'write a name that is not "*" and does not begin with "@"')

    def whole(self, option: str, value: int, least: int, most: int) -> None:
        if type(value) is not int or not least <= value <= most:
            raise self.refused(option, value, f"write a whole number from {least} to {most}")

    def seconds(self, option: str, value: float | None, above: float | None = None) -> None:
        """None is allowed; else a number of seconds, at least 0 or more than `above`."""
        if value is None:
            return
        enough = _is_number(value) and (value >= 0 if above is None else value > above)
        if not enough or value > LONGEST_S:
            raise self.refused(option, value, "write a number of seconds, such as 300")

    def retry(self, retry: Retry) -> None:
        if not isinstance(retry, Retry) or not isinstance(retry.backoff, Backoff):
            raise self.refused("retry", retry, "write NO_RETRY, Retry(5) or Retry(5, exponential(1, 3600))")
        backoff = retry.backoff
        self.whole("retry.times", retry.times, 0, RETRIES_MAX)
        for option in ("first_s", "cap_s"):
            self.seconds(f"retry.backoff.{option}", getattr(backoff, option))
        if backoff.cap_s < backoff.first_s:
            raise self.refused("retry.backoff", backoff, "write a cap that is not below the first delay")
        if not _is_number(backoff.factor) or not 1 <= backoff.factor <= FACTOR_MAX:
            raise self.refused(
                "retry.backoff.factor", backoff.factor, f"write a number from 1 to {FACTOR_MAX}"
            )
        if not _is_number(retry.jitter) or not 0 <= retry.jitter <= 1:
            raise self.refused("retry.jitter", retry.jitter, "write a share from 0 to 1, such as 0.1")

    def memory(self, limit: int | str | None) -> int | None:
        """The bytes of a limit."""
        if limit is None:
            return None
        remedy = 'write bytes above 0, or a text such as "512MiB"'
        try:
            size = parse_size(limit) if isinstance(limit, str) else limit
        except (ValueError, OverflowError) as cause:
            raise self.refused("memory_limit", limit, remedy) from cause
        if type(size) is not int or not 0 < size < 2**63:
            raise self.refused("memory_limit", limit, remedy)
        return size

    def final(self, final: tuple[type[BaseException], ...]) -> None:
        if not isinstance(final, tuple) or not all(
            isinstance(each, type) and issubclass(each, BaseException) for each in final
        ):
            raise self.refused("final", final, "write a tuple of exception classes, such as (ValueError,)")

    def run(self, cls: type[Job]) -> None:
        run = cls.run
        if run is Job.run or not callable(run):
            raise DefinitionError(f"{self.name}: has no method run; write def run(self, ctx)")
        if any(is_a(run) for is_a in _NOT_PLAIN):
            raise DefinitionError(
                f"{self.name}.run: would be called but not awaited or iterated; write a plain def"
            )
        try:
            inspect.signature(run).bind(None, None)
        except TypeError as cause:
            raise DefinitionError(
                f"{self.name}.run: takes the wrong arguments; write def run(self, ctx)"
            ) from cause

    def decoder(self, cls: type[J]) -> msgspec.json.Decoder[J]:
        """The decoder of payloads, whose fields all have types that JSON can carry back."""
        try:
            fields = msgspec.structs.fields(cls)
        except NameError as cause:
            raise DefinitionError(self._unresolved(cls, str(cause.name))) from cause
        for each in fields:
            where = f"{self.name}.{each.name}"
            try:
                problem = _uncarried(types.type_info(each.type), set())
            except NameError as cause:
                problem = f"its type names {cause.name!r}, which is not known where it is defined"
            except TypeError as cause:
                problem = str(cause)
            if problem:
                raise DefinitionError(
                    f"{where}: {problem}; write a type that JSON can carry back, such as str"
                )
        return msgspec.json.Decoder(cls)

    def _unresolved(self, cls: type[Job], unknown: str) -> str:
        named = re.compile(rf"\b{re.escape(unknown)}\b")
        field_name = next(
            (each for each, type_ in cls.__annotations__.items() if named.search(str(type_))), "?"
        )
        remedy = (
            "put what nests into a msgspec.Struct of its own"
            if unknown == cls.__name__
            else "import it outside `if TYPE_CHECKING`, or define it above the class, in the module itself"
        )
        return f"{self.name}.{field_name}: its type names {unknown!r}, which is not known there; {remedy}"


_NOT_PLAIN = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
_KEYS = (  # the types that msgspec writes as keys of a JSON object
    types.AnyType,
    types.StrType,
    types.IntType,
    types.FloatType,
    types.EnumType,
    types.LiteralType,
    types.UUIDType,
    types.DecimalType,
    types.DateType,
    types.DateTimeType,
    types.TimeType,
    types.TimeDeltaType,
    types.BytesType,
)


def _uncarried(node: types.Type, seen: set[int]) -> str | None:
    """Why JSON cannot carry values of a type back, or None; `seen` holds the nodes that were looked at."""
    if id(node) in seen:
        return None
    seen.add(id(node))
    if isinstance(node, types.CustomType):
        return f"{_name(node.cls)} is not known to JSON"
    if isinstance(node, types.ExtType | types.RawType):
        return f"{type(node).__name__.removesuffix('Type')} is not a value of JSON"
    if isinstance(node, types.DictType):
        key = node.key_type
        if not all(
            isinstance(each, _KEYS) for each in (key.types if isinstance(key, types.UnionType) else (key,))
        ):
            return "keys of a JSON object are text or numbers"
    return next(filter(None, (_uncarried(part, seen) for part in _parts(node))), None)


def _parts(node: types.Type) -> Iterator[types.Type]:
    for name in node.__struct_fields__:
        value = getattr(node, name)
        for each in value if isinstance(value, tuple) else (value,):
            part = each.type if isinstance(each, types.Field) else each
            if isinstance(part, types.Type):
                yield part


# -- values and their names


def _first_unencodable(job: Job) -> str | None:
    """The field that msgspec cannot write, and why: its own message does not say which."""
    for name in job.__struct_fields__:
        value = getattr(job, name)
        if value is not msgspec.UNSET:
            try:
                _ENCODER.encode(value)
            except _UNENCODABLE as cause:
                return f"{name}: {_plainly(cause)}"
    return None


def _plainly(cause: Exception) -> str:
    if isinstance(cause, RecursionError):
        return "is nested too deeply, or contains itself"
    if isinstance(cause, UnicodeError):
        return "holds a lone surrogate, which is no text; clean it with errors='backslashreplace'"
    return f"{cause}; JSON holds numbers, text, lists and dicts"


def _unstorable(value: object, path: str) -> str | None:
    """The first value in plain data that jsonb cannot hold, with its path."""
    rest = [(path, value)]
    while rest:
        path, value = rest.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return f"{path}: is {value}, which JSON cannot hold; use None or leave it out"
        if isinstance(value, str) and "\0" in value:
            return f"{path}: holds the character NUL, which PostgreSQL cannot store; strip it"
        if isinstance(value, dict):
            rest += [(f"{path}{_step(key)}".lstrip("."), each) for key, each in reversed(value.items())]
            rest += [(f"{path}: a key", key) for key in value]
        elif isinstance(value, list | tuple):
            rest += [(f"{path}[{at}]", each) for at, each in reversed(list(enumerate(value)))]
    return None


def _step(key: str) -> str:
    """A key as part of a path, in one line and of bounded length."""
    return f".{key}" if key.isprintable() and len(key) <= KEY_CHARS else f"[{key[:KEY_CHARS]!r}]"


def _raw(value: object) -> object:
    """JSON text that a result carries as it is (`msgspec.Raw`), as plain data."""
    if isinstance(value, msgspec.Raw):
        return _EXACT.decode(value)
    raise TypeError(f"Encoding objects of type {_short(value)} is unsupported")


def _named(message: str) -> str:
    """msgspec's "PROBLEM - at `$.a.b`" as "a.b: PROBLEM"."""
    problem, _, at = message.partition(" - at `$")
    path = at.rstrip("`").removeprefix(".")
    if lacking := re.fullmatch(
        r"Object (missing required|contains unknown) field `(.+)`", problem, re.DOTALL
    ):
        path = f"{path}.{lacking[2]}".lstrip(".")
        problem = "is missing" if lacking[1] == "missing required" else "is not a field of this kind"
    return f"{path}: {problem}" if path else problem


def _is_visible(text: object, most_bytes: int) -> bool:
    """Text of 1 to `most_bytes` bytes, without spaces, control characters and surrogates."""
    if not isinstance(text, str) or not text.isprintable() or " " in text:
        return False
    return 0 < len(text.encode()) <= most_bytes


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _name(thing: object) -> str:
    module = getattr(thing, "__module__", None)
    return f"{module}.{_short(thing)}" if module else _short(thing)


def _short(thing: object) -> str:
    return str(getattr(thing, "__qualname__", None) or type(thing).__qualname__)


def _identity(cls: type[Job]) -> tuple[str, str]:
    """Where a class stands: the same for a file that runs as `__main__` and is imported by its name too."""
    module = sys.modules.get(cls.__module__)
    return getattr(module, "__file__", None) or cls.__module__, cls.__qualname__
