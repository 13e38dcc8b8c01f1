"""The settings: what there is, what is accepted, and where values come from.

A value is taken from the environment, else from one TOML file, else from the defaults below. Each is read by the
type of its field and refused by its name, before anything is started. The sections are plain data; tests and
tools may build them directly, with durations in seconds and sizes in bytes.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, get_args, get_origin

import msgspec
from msgspec import Meta

from runtime.errors import ConfigError
from runtime.model.jobs import TIMEOUT_MAX_S, Kept
from runtime.model.units import Count, format_duration, parse_duration, parse_size

DEFAULT_PATH = Path("configs/tenure.toml")
LONGEST_S = 10 * 365 * 86400.0  # no duration may be longer: timers and timestamps must hold it
HOOK = re.compile(r"[\w.]+:\w+")
ENV_PREFIX = "TENURE_"
ENV_PATH = "TENURE_CONFIG"
ENV_DATABASE_URL = "TENURE_DATABASE_URL"

# How a field is written in the file; in the structs a duration is seconds and a size bytes, None when it is "".
Duration = Annotated[float, Meta(ge=0, extra={"written": "duration"})]
Size = Annotated[int | None, Meta(extra={"written": "size"})]
Text = Annotated[str, Meta(min_length=1)]
Positive = Annotated[int, Meta(ge=1)]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base: immutable, named fields only; a misspelt key is an error, not a default."""


class DatabaseConfig(Section, frozen=True, kw_only=True):
    """Which PostgreSQL. Printed anywhere, it shows no password."""

    url: str = ""  # empty: the embedded PostgreSQL in `data_dir`
    data_dir: Path = Path(".tenure/postgres")
    connect_timeout: Duration = 5.0

    @property
    def shown_url(self) -> str:
        """The URL as it may be logged: passwords are masked, rather too much than too little."""
        masked = re.sub(r"(://[^:@/?#]*):.*@", r"\1:***@", self.url, flags=re.DOTALL)
        end = r"[^&]" if "://" in masked else r"(?:\\.|[^\s\\])"
        return re.sub(rf"(password\s*=\s*)('(?:\\.|[^'\\])*'?|{end}+)", r"\1***", masked, flags=re.DOTALL)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({shown})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        shown: dict[str, object] = msgspec.structs.asdict(self) | {"url": self.shown_url}
        return list(shown.items())


class ServiceConfig(Section, frozen=True, kw_only=True):
    handlers: tuple[Text, ...] = ("handlers",)
    workers: Annotated[int, Meta(ge=0, le=1024)] = 0  # 0: one a core
    queues: Annotated[tuple[Text, ...], Meta(min_length=1)] = ("*",)
    shutdown_grace: Duration = 30.0
    start_method: Literal["fork", "spawn", "forkserver"] = "fork"
    ready_within: Duration = 30.0
    sandbox: Literal["declared", "strict"] = "declared"
    store_error_text: bool = True
    redact: str = ""  # "module:function"; empty: nothing is redacted


class LeaseConfig(Section, frozen=True, kw_only=True):
    duration: Duration = 30.0
    renew_every: Duration = 10.0
    reclaim_every: Duration = 5.0


class WorkerConfig(Section, frozen=True, kw_only=True):
    timeout: Duration = 900.0  # for kinds that set none
    kill_after: Duration = 1.0
    recycle_jobs: Count = 0  # 0: never
    recycle_memory: Size = None
    memory_limit: Size = None
    threads: Count = 0  # 0: the cores divided by the workers


class RestartConfig(Section, frozen=True, kw_only=True):
    first_delay: Duration = 0.1
    factor: Annotated[float, Meta(ge=1, le=1000)] = 3.0
    max_delay: Duration = 30.0
    unhealthy_after: Positive = 5
    healthy_after: Duration = 10.0


class LogConfig(Section, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "console", "json"] = "auto"


class RetentionConfig(Section, frozen=True, kw_only=True):
    finished: Duration = 7 * 86400.0


class Config(Section, frozen=True, kw_only=True):
    """All settings; `path` is the file they were read from, None when there was none."""

    database: DatabaseConfig = DatabaseConfig()
    service: ServiceConfig = ServiceConfig()
    lease: LeaseConfig = LeaseConfig()
    worker: WorkerConfig = WorkerConfig()
    restart: RestartConfig = RestartConfig()
    log: LogConfig = LogConfig()
    retention: RetentionConfig = RetentionConfig()
    path: Path | None = None

    @property
    def worker_count(self) -> int:
        return self.service.workers or _cores()

    @property
    def kept(self) -> Kept:
        """Which words of an attempt are stored. A dead process's output cannot be redacted, so it goes then."""
        service = self.service
        return Kept(service.store_error_text, service.store_error_text and not service.redact)

    @property
    def thread_count(self) -> int:
        """Threads that numeric libraries may use in one worker."""
        return self.worker.threads or max(1, _cores() // self.worker_count)


SECTIONS: dict[str, type[Section]] = {
    "database": DatabaseConfig,
    "service": ServiceConfig,
    "lease": LeaseConfig,
    "worker": WorkerConfig,
    "restart": RestartConfig,
    "log": LogConfig,
    "retention": RetentionConfig,
}
TYPES: dict[str, Any] = {  # by dotted key
    f"{section}.{field.name}": field.type
    for section, cls in SECTIONS.items()
    for field in msgspec.structs.fields(cls)
}
LISTS = {"service.handlers", "service.queues"}  # in the environment their items are separated by commas
MORE_THAN_ZERO = {  # a duration that must not be 0, and why
    "database.connect_timeout": "an attempt to connect needs time",
    "service.ready_within": "a process needs time to start",
    "lease.duration": "a lease must last",
    "lease.renew_every": "renewing without a pause would load the database",
    "lease.reclaim_every": "looking for lost leases without a pause would load the database",
    "worker.timeout": 'a job without a limit could hold its worker for ever; write a long one, such as "24h"',
    "restart.first_delay": "a child that dies at its start would be restarted without a pause",
    "retention.finished": "finished jobs would be gone before anybody could read them",
}


class Given(NamedTuple):
    """A value as it was found, and where."""

    value: object
    origin: str
    is_text: bool = False  # from the environment: numbers come as text


def load(path: Path | None, environ: Mapping[str, str], cwd: Path) -> Config:
    """Read the settings.

    The file is `path`, else `TENURE_CONFIG`, else `configs/tenure.toml` under `cwd` if there is one. A variable
    of the environment, `TENURE_DATABASE_URL` or `TENURE_<SECTION>__<KEY>`, goes before the file.

    Raises:
        ConfigError: names the key, or the file that cannot be read, or the variable that means nothing.
    """
    found = _find(path, environ, cwd)
    given = _from_file(found) if found else {}
    given |= _from_environment(environ)
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for key, value in given.items():
        section, _, name = key.partition(".")
        try:
            values[section][name] = _read(key, value)
        except (ValueError, OverflowError) as cause:
            raise ConfigError(key, f"{cause} (in {value.origin})") from cause
    base = project_of(found) if found else cwd
    data_dir: Path = values["database"].get("data_dir", DatabaseConfig().data_dir)
    values["database"]["data_dir"] = base / data_dir.expanduser()
    sections: dict[str, Any] = {section: cls(**values[section]) for section, cls in SECTIONS.items()}
    config = Config(**sections, path=found)
    check(config)
    return config


def project_of(path: Path) -> Path:
    """The directory that a configuration file speaks for: its own, or the one above `configs/`."""
    return path.parent.parent if path.parent.name == "configs" else path.parent


def check(config: Config) -> None:
    """Refuse values that contradict each other.

    Raises:
        ConfigError: names one of them, the text both.
    """
    lease, worker, restart = config.lease, config.worker, config.restart
    url = config.database.url
    if url and not url.startswith(("postgresql://", "postgres://")) and "=" not in url:
        raise ConfigError("database.url", 'must be such as "postgresql://user@host/name", or empty')
    if lease.renew_every * 3 > lease.duration * (1 + 1e-9):  # 3 * 0.1 is more than 0.3 in floating point
        raise ConfigError(
            "lease.renew_every",
            f"must be at most a third of lease.duration: a lease must outlive two lost renewals; "
            f"got {format_duration(lease.renew_every)} and {format_duration(lease.duration)}",
        )
    if worker.timeout > TIMEOUT_MAX_S:
        raise ConfigError(
            "worker.timeout",
            f'must be at most "24h", got {format_duration(worker.timeout)}: split longer work',
        )
    if restart.first_delay > restart.max_delay:
        raise ConfigError(
            "restart.first_delay",
            f"must be at most restart.max_delay; "
            f"got {format_duration(restart.first_delay)} and {format_duration(restart.max_delay)}",
        )
    if worker.memory_limit and worker.recycle_memory and worker.recycle_memory >= worker.memory_limit:
        raise ConfigError(
            "worker.recycle_memory",
            f"must be less than worker.memory_limit, which kills before anything is recycled; "
            f"got {worker.recycle_memory} and {worker.memory_limit} bytes",
        )
    if config.service.redact and not HOOK.fullmatch(config.service.redact):
        raise ConfigError(
            "service.redact", f'must be "module:function", or empty; got {config.service.redact!r}'
        )
    queues = config.service.queues
    if "*" in queues and len(queues) > 1:
        raise ConfigError("service.queues", f'"*" means all queues and stands alone; got {list(queues)}')


def _find(path: Path | None, environ: Mapping[str, str], cwd: Path) -> Path | None:
    """The file to read, absolute; None when none was named and the default one is not there."""
    if path is None and ENV_PATH in environ:
        if not environ[ENV_PATH]:
            raise ConfigError(ENV_PATH, "is empty; name a file or unset it")
        path = Path(environ[ENV_PATH])
    if path is not None:
        return cwd / path.expanduser()
    default = cwd / DEFAULT_PATH
    return default if default.exists() else None


def _from_file(path: Path) -> dict[str, Given]:
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except OSError as cause:
        raise ConfigError(str(path), f"cannot be read: {cause.strerror}") from cause
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        raise ConfigError(str(path), f"is no TOML file: {cause}") from cause
    given: dict[str, Given] = {}
    for section, table in tables.items():
        if section not in SECTIONS:
            _unknown(section, str(path))
        if not isinstance(table, dict):
            raise ConfigError(section, f"is a section; write [{section}] and its keys below it (in {path})")
        for name, value in table.items():
            key = f"{section}.{name}"
            if key not in TYPES:
                _unknown(key, str(path))
            given[key] = Given(value, str(path))
    return given


def _from_environment(environ: Mapping[str, str]) -> dict[str, Given]:
    given: dict[str, Given] = {}
    keys = {_variable(key): key for key in TYPES}
    misspelt = {name.replace("__", "_"): name for name in keys if name != "TENURE_DATABASE__URL"}
    for name, text in environ.items():
        if name in keys:
            given[keys[name]] = Given(text, name, is_text=True)
        elif name in misspelt or (name.startswith(ENV_PREFIX) and "__" in name):
            near = misspelt.get(name) or _nearest(name, keys)
            raise ConfigError(name, f"is not a known setting{_did_you_mean(near)}")
    if (url := environ.get(ENV_DATABASE_URL)) is not None:
        if given.get("database.url", Given(url, "")).value != url:
            raise ConfigError(ENV_DATABASE_URL, f"differs from {_variable('database.url')}; set one of them")
        given["database.url"] = Given(url, ENV_DATABASE_URL)
    return given


def _read(key: str, given: Given) -> object:
    """The value of a field, checked.

    Raises:
        ValueError: says what is accepted.
    """
    value, type_ = given.value, TYPES[key]
    if given.is_text and not value and type_ not in (str, Size):
        raise ValueError("is empty; give it a value or unset it")
    if given.is_text and isinstance(value, str) and key in LISTS:
        value = [item.strip() for item in value.split(",")]
    if type_ == Duration:
        return _duration(key, value)
    if type_ == Size:
        return _size(value)
    if get_origin(type_) is Literal and value not in get_args(type_):
        raise ValueError(f"must be one of {', '.join(map(repr, get_args(type_)))}; got {value!r}")
    if type_ is Path:
        return Path(msgspec.convert(value, Text))
    return msgspec.convert(value, type_, strict=not given.is_text)


def _duration(key: str, value: object) -> float:
    if not isinstance(value, str):
        example = f"{value}s" if type(value) in (int, float) else "30s"
        raise ValueError(f'must be a text with a unit, such as "{example}"; got {value!r}')  # noqa: TRY004
    seconds = parse_duration(value)
    if seconds > LONGEST_S:
        raise ValueError(f'must be at most "{LONGEST_S / 86400:.0f}d", got {value!r}')
    if seconds == 0 and key in MORE_THAN_ZERO:
        raise ValueError(f"must be more than 0, got {value!r}: {MORE_THAN_ZERO[key]}")
    return seconds


def _size(value: object) -> int | None:
    if not isinstance(value, str):
        raise ValueError(f'must be a text with a unit, such as "512MiB", or "" for none; got {value!r}')  # noqa: TRY004
    if not value:
        return None
    size = parse_size(value)
    if not 0 < size < 2**63:
        raise ValueError(f'must be more than 0, or "" for none; got {value!r}')
    return size


def _unknown(key: str, origin: str) -> NoReturn:
    """Refuse a key, naming the nearest one: of the same section first, then of any."""
    section, _, name = key.rpartition(".")
    inside = {known.rpartition(".")[2]: known for known in TYPES if known.startswith(f"{section}.")}
    anywhere = [known for known in TYPES if known.endswith(f".{name}")]
    near = (
        inside.get(_nearest(name, inside) or "")
        or next(iter(anywhere), None)
        or (None if section else _nearest(key, SECTIONS))
    )
    raise ConfigError(key, f"is not a known setting{_did_you_mean(near)} (in {origin})")


def _nearest(name: str, known: Iterable[str]) -> str | None:
    import difflib  # noqa: PLC0415 - 170 KiB that a service would keep, and only mistakes need

    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.7)), None)


def _did_you_mean(near: str | None) -> str:
    return f"; did you mean {near}?" if near else ""


def _variable(key: str) -> str:
    return ENV_PREFIX + key.upper().replace(".", "__")


def _cores() -> int:
    """Cores that this process may use, which in a container or under taskset are fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
