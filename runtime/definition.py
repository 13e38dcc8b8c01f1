"""What a job class is: its payload, its options, what is refused in either, and the way to JSON and back.

What a user writes can be wrong in two places: where a kind is defined, refused with the name of the class, the
field and the remedy; and in one payload, refused with the name of the field. `registry.py` keeps the kinds.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple, TypeVar, get_origin, get_type_hints

import msgspec
from msgspec import inspect as types

from runtime.errors import DefinitionError, PayloadInvalid
from runtime.model.backoff import NO_DELAY, Backoff
from runtime.model.jobs import (
    KIND_BYTES,
    QUEUE_BYTES,
    SCHEDULE_BYTES,
    TIMEOUT_MAX_S,
    Kick,
    Missed,
    NewSchedule,
    Overlap,
)
from runtime.model.messages import Limits
from runtime.model.reach import EVERYTHING, LIST_MAX, Filesystem, Origin, Reach, is_right, parse_origin
from runtime.model.units import parse_size
from runtime.rules.schedule import Cron, Every, Schedule

LONGEST_S = 10 * 365 * 86400.0  # no timeout or delay may be longer: timers and timestamps must hold it
RETRIES_MAX = 100_000
CRASHES_MAX = 1_000
VERSION_KEY = "$version"  # beside the fields of a payload whose class has a version above 1
KEY_CHARS = 64  # of a key in a path that names a value
FACTOR_MAX = 1_000.0
TEXT_BYTES = (
    64 * 2**20
)  # of a payload or a result; larger things belong in a file, with their path in the payload


class Job(msgspec.Struct, forbid_unknown_fields=True):
    """Base of payloads: subclass it under `@job` with typed fields and a method `run`.

    A handler that changes its fields gives new ones defaults, or raises `version` and says in `upgrade` what
    becomes of older payloads, which may wait in the queue for long.
    """

    version: ClassVar[int] = 1

    def run(self, ctx: Any, /, *provided: Any, **named: Any) -> Any:
        """Do the work; what is returned is stored as the result, as JSON.

        Parameters after `ctx` are provided by their types, see `runtime.provider`.
        """
        raise NotImplementedError

    @classmethod
    def upgrade(cls, raw: dict[str, Any], version: int) -> dict[str, Any]:
        """The fields of a payload that was pushed at an older `version`, as this version has them."""
        del version
        return raw


J = TypeVar("J", bound=Job)


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
_FIELDS = msgspec.json.Decoder(dict[str, Any])
_EXACT = msgspec.json.Decoder(float_hook=str)  # makes no number of what no float could hold
_VALUE_AT = re.compile(
    r" - at `\$([^`]*)`$"
)  # the end of a message; a value before it ends with no such mark
_UNENCODABLE = (TypeError, ValueError, OverflowError, RecursionError)  # what msgspec raises for a value


class Need(NamedTuple):
    """A parameter of a handler's `run` that is provided by its type."""

    name: str
    type: type
    optional: bool  # it has a default, for when nothing provides it


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Definition:
    """One kind: its payload class, what bounds it, and its way to JSON text and back."""

    kind: str
    cls: type[Job]
    retry: Retry
    timeout_s: float | None
    queue: str
    priority: int
    final: tuple[type[BaseException], ...]  # such a failure is the last one, whatever `retry` allows
    stall_s: float | None
    max_crashes: int
    crash_retries: bool
    memory_bytes: int | None
    decoder: msgspec.json.Decoder[Job] = field(repr=False)
    needs: tuple[Need, ...] = ()  # parameters of `run` after ctx
    schedule: NewSchedule | None = None  # by which it runs, with all its fields at their defaults
    reach: Reach = EVERYTHING
    kicks: tuple[str, ...] = ()  # the kinds that it may kick

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

    def kick(self) -> Kick:
        """What asks for a run of this kind.

        Raises:
            DefinitionError: it cannot be kicked; the text says what to write.
        """
        name = name_of(self.cls)
        if len(self.kind.encode()) > SCHEDULE_BYTES:
            raise DefinitionError(
                f"{name}: kind={self.kind!r}: is kicked, so write at most {SCHEDULE_BYTES} bytes"
            )
        if self.schedule is not None and self.schedule.overlap != "skip":
            raise DefinitionError(
                f'{name}: overlap={self.schedule.overlap!r}: is kicked, so write "skip": its runs do not overlap'
            )
        payload = self.encode(Check(self.cls).defaults(self.cls))
        return Kick(kind=self.kind, payload=payload, queue=self.queue, priority=self.priority)

    def period_s(self, now: datetime) -> float | None:
        """Seconds between the next two ticks of its schedule after `now`; None without one."""
        if self.schedule is None:
            return None
        rule: Cron | Every = msgspec.json.decode(self.schedule.spec, type=Cron | Every)
        tick = rule.next(now)
        return (rule.next(tick, last=tick) - tick).total_seconds()

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
        if self.cls.version > 1:
            fields = text.removeprefix("{")
            text = f'{{"{VERSION_KEY}":{self.cls.version}{"" if fields == "}" else ","}{fields}'
        self.decode(text)
        return text

    def decode(self, payload: str) -> Job:
        """The job of a payload.

        Raises:
            PayloadInvalid: names the field that is missing, unknown or wrong.
        """
        try:
            if self.cls.version > 1:
                return self._upgraded(payload)
            return self.decoder.decode(payload)
        except msgspec.ValidationError as cause:
            raise PayloadInvalid(self.kind, _named(str(cause))) from cause
        except (msgspec.DecodeError, UnicodeError) as cause:
            raise PayloadInvalid(self.kind, f"is not JSON: {cause}") from cause
        except RecursionError as cause:
            raise PayloadInvalid(self.kind, "is nested too deeply") from cause

    def _upgraded(self, payload: str) -> Job:
        """The job of a payload of any version up to this one; one without a version is of the first."""
        raw = _FIELDS.decode(payload)
        version = raw.pop(VERSION_KEY, 1)
        if type(version) is not int or not 1 <= version <= self.cls.version:
            raise PayloadInvalid(
                self.kind,
                f"{VERSION_KEY}: is {version!r}, this program knows 1 to {self.cls.version}; deploy the newer",
            )
        if version < self.cls.version:
            raw = self.cls.upgrade(raw, version)
        return self.decoder.decode(_ENCODER.encode(raw))

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

    def decode_result(self, result: msgspec.Raw) -> Any:
        """What a handler returned, as the type that its `run` says it returns; plain data where it says none.

        Raises:
            PayloadInvalid: it is not of that type; the problem begins with "result".
        """
        try:
            return msgspec.json.decode(result, type=self._result_type())
        except msgspec.ValidationError as cause:
            raise PayloadInvalid(self.kind, f"result: {_named(str(cause))}") from cause

    def _result_type(self) -> Any:
        """The return annotation of `run`; Any for one that is not known here, or that JSON has no way to."""
        said = SimpleNamespace(__annotations__={"return": self.cls.run.__annotations__.get("return", Any)})
        try:
            hint = get_type_hints(said, globalns=self.cls.run.__globals__)["return"]
            return hint if _uncarried(types.type_info(hint), set()) is None else Any
        except (NameError, TypeError, AttributeError):
            return Any

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


# -- what a definition must be


class Check:
    """The rules of a definition; each method raises DefinitionError, naming the class, unless its rule holds."""

    def __init__(self, cls: type[Job]) -> None:
        self.name = name_of(cls)

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

    def timeout(self, kind: str, timeout: float | None) -> None:
        self.seconds("timeout", timeout, above=0.0)
        if timeout is not None and timeout > TIMEOUT_MAX_S:
            raise self.refused(
                "timeout", timeout, f"kind {kind!r} may take a day, {TIMEOUT_MAX_S:.0f} s; split longer work"
            )

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

    def reach(
        self,
        rights: tuple[str, ...] | None,
        egress: tuple[str, ...] | None,
        filesystem: Filesystem | None,
    ) -> Reach:
        """What is declared of rights, egress and files."""
        if rights is not None and not (_is_list(rights) and all(map(is_right, rights))):
            raise self.refused("rights", rights, 'write a tuple of names such as ("outbox.write",)')
        if filesystem is not None and not (
            isinstance(filesystem, Filesystem)
            and all(
                _is_list(paths) and all(map(_is_path, paths)) for paths in msgspec.structs.astuple(filesystem)
            )
        ):
            remedy = 'write Filesystem(read=("/srv/in",), write=("/srv/out",)), with absolute paths'
            raise self.refused("filesystem", filesystem, remedy)
        return Reach(
            rights=rights, egress=None if egress is None else self._origins(egress), filesystem=filesystem
        )

    def _origins(self, egress: tuple[str, ...]) -> tuple[Origin, ...]:
        remedy = 'write a tuple of origins such as ("https://api.example.com", "tcp://10.0.0.5:6379")'
        if not _is_list(egress):
            raise self.refused("egress", egress, remedy)
        origins = []
        for text in egress:
            try:
                origins.append(parse_origin(text))
            except ValueError as cause:
                raise self.refused("egress", egress, f"{text!r} {cause}; {remedy}") from cause
        return tuple(origins)

    def run(self, cls: type[Job]) -> None:
        run = cls.run
        if run is Job.run or not callable(run):
            raise DefinitionError(f"{self.name}: has no method run; write def run(self, ctx)")
        if any(is_a(run) for is_a in _NOT_PLAIN):
            raise DefinitionError(
                f"{self.name}.run: would be called but not awaited or iterated; write a plain def"
            )
        parameters = list(inspect.signature(run).parameters.values())
        plain = [
            each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
        ]
        if len(plain) < 2 and not any(each.kind is each.VAR_POSITIONAL for each in parameters):
            raise DefinitionError(f"{self.name}.run: takes the wrong arguments; write def run(self, ctx)")

    def needs(self, cls: type[Job]) -> tuple[Need, ...]:
        """What `run` asks for after ctx, by type."""
        named = [
            each
            for each in list(inspect.signature(cls.run).parameters.values())[2:]
            if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        ]
        if not named:
            return ()
        try:
            hints = get_type_hints(cls.run)
        except NameError as cause:
            raise DefinitionError(
                f"{self.name}.run: a type names {cause.name!r}, which is not known there; import it outside "
                "`if TYPE_CHECKING`"
            ) from cause
        needs = []
        for each in named:
            optional = each.default is not each.empty
            hint = hints.get(each.name)
            if not isinstance(hint, type):
                hint = get_origin(hint)  # psycopg.Connection[Any] asks for a psycopg.Connection
            if isinstance(hint, type):
                needs.append(Need(each.name, hint, optional))
            elif not optional:
                raise DefinitionError(
                    f"{self.name}.run: parameter {each.name!r} has no class as its type; write what is to be "
                    "provided, such as db: Database"
                )
        return tuple(needs)

    def schedule(self, schedule: Schedule | None, overlap: Overlap | None, missed: Missed | None) -> None:
        """What a schedule needs to say, and what has no meaning without one."""
        if schedule is None:
            for option, value in (("overlap", overlap), ("missed", missed)):
                if value is not None:
                    raise self.refused(option, value, "leave it out: there is no schedule")
            return
        if not isinstance(schedule, Cron | Every):
            raise self.refused("schedule", schedule, 'write cron("0 3 * * *") or every("10m")')
        if overlap not in ("skip", "queue"):
            raise self.refused(
                "overlap", overlap, 'write "skip" or "queue": what a tick does while the last run is on'
            )
        if missed not in ("drop", "catch_up"):
            raise self.refused(
                "missed", missed, 'write "drop" or "catch_up": what becomes of ticks that were missed'
            )

    def kicks(self, kicks: tuple[str, ...]) -> None:
        if not isinstance(kicks, tuple) or not all(_is_visible(each, KIND_BYTES) for each in kicks):
            raise self.refused("kicks", kicks, 'write a tuple of kinds, such as ("other-kind",)')

    def defaults(self, cls: type[J]) -> J:
        """A job with every field at its default, which is what a schedule or a kick makes."""
        try:
            return cls()
        except TypeError as cause:
            raise DefinitionError(
                f"{self.name}: {cause}; neither a schedule nor a kick fills in a field, so give each a default"
            ) from cause

    def version(self, cls: type[Job]) -> None:
        self.whole("version", cls.version, 1, 10**6)
        if cls.version > 1 and cls.upgrade.__func__ is Job.upgrade.__func__:  # type: ignore[attr-defined]
            raise DefinitionError(
                f"{self.name}: is version {cls.version} and does not say what becomes of older payloads; write "
                "@classmethod def upgrade(cls, raw, version)"
            )

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
        return f"{name_of(node.cls)} is not known to JSON"
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
    raise TypeError(f"Encoding objects of type {short_name(value)} is unsupported")


def _named(message: str) -> str:
    """msgspec's "PROBLEM - at `$.a.b`" as "a.b: PROBLEM", and without the value that two of its messages quote."""
    if message.startswith(("Invalid enum value ", "Invalid value ")):
        found = _VALUE_AT.search(message)
        message = f"is none of the values that its type allows - at `${found[1] if found else ''}`"
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


def _is_list(value: object) -> bool:
    """A tuple of texts."""
    return (
        isinstance(value, tuple) and len(value) <= LIST_MAX and all(isinstance(each, str) for each in value)
    )


def _is_path(text: str) -> bool:
    return text.startswith("/") and text.isprintable()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def name_of(thing: object) -> str:
    module = getattr(thing, "__module__", None)
    return f"{module}.{short_name(thing)}" if module else short_name(thing)


def short_name(thing: object) -> str:
    return str(getattr(thing, "__qualname__", None) or type(thing).__qualname__)
