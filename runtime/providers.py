"""What handlers ask for by type: how it is made, once a worker, and how it is closed again.

A handler names what it needs as parameters of `run` after `ctx`; `provider` registers who makes a value of that
type. Values are made in the worker, after the fork, when the first job asks for one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

import msgspec

from runtime.config import Config, DatabaseConfig
from runtime.definition import Definition, Need, name_of
from runtime.errors import DefinitionError
from runtime.model.jobs import Lease

T = TypeVar("T")

Maker = Callable[[Config], Any]

AttemptMaker = Callable[[Config, Lease], Any]

_MAKERS: dict[type, Maker] = {}  # for a whole worker
_ATTEMPT_MAKERS: dict[type, AttemptMaker] = {}  # anew for each attempt
_OF_DATABASE: set[type] = set()  # for kinds that may use the database


def provider(type_: type[T]) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a function, or a context manager, that makes the `type_` that handlers ask for.

    It takes no arguments. It is called once in each worker, when a handler first needs it; a context manager is
    left when the worker ends. An exception in it is a failure of the job that asked.

        @provider(Database)
        @contextmanager
        def database() -> Iterator[Database]:
            with Database.connect() as db:
                yield db

    Raises:
        DefinitionError: the type has another provider already, or the function needs arguments.
    """
    if not isinstance(type_, type):
        raise DefinitionError(f"provider({type_!r}): write a class, such as @provider(Database)")

    def register(make: Callable[[], Any]) -> Callable[[], Any]:
        needed = [each for each in inspect.signature(make).parameters.values() if each.default is each.empty]
        if needed:
            raise DefinitionError(
                f"{name_of(make)}: a provider is called without arguments; give {needed[0].name!r} a default"
            )
        other = _MAKERS.get(type_)
        if other is not None and name_of(other) != name_of(make):
            raise DefinitionError(
                f"{name_of(type_)} has two providers, {name_of(other)} and {name_of(make)}; keep one"
            )
        _MAKERS[type_] = _plain(make)
        return make

    return register


def _plain(make: Callable[[], Any]) -> Maker:
    def call(config: Config) -> Any:
        del config
        return make()

    call.__module__, call.__qualname__ = make.__module__, make.__qualname__
    return call


def provide_ours(type_: type, make: Maker, *, of_database: bool = False) -> None:
    """Register what this package itself provides; `make` is given the worker's configuration, URL included."""
    _MAKERS[type_] = make
    if of_database:
        _OF_DATABASE.add(type_)


def provide_each_attempt(type_: type, make: AttemptMaker, *, of_database: bool = False) -> None:
    """The same for what each attempt gets anew; `make` is given the attempt's lease too."""
    _ATTEMPT_MAKERS[type_] = make
    if of_database:
        _OF_DATABASE.add(type_)


def unservable(definitions: Iterable[Definition], sandbox: str) -> dict[str, str]:
    """Why kinds cannot be served, by kind, and what to write: what they ask for, or do not declare."""
    found = {}
    for definition in definitions:
        problem = _undeclared(definition) if sandbox == "strict" else None
        problem = problem or next(
            filter(None, (_lacking(definition, need) for need in definition.needs)), None
        )
        if problem:
            found[definition.kind] = problem
    return found


def _undeclared(definition: Definition) -> str | None:
    """What a kind has yet to declare, none of which is left to chance in a strict sandbox."""
    unsaid = definition.reach.unsaid
    if not unsaid:
        return None
    least = {"rights": "rights=()", "egress": "egress=()", "filesystem": "filesystem=Filesystem()"}
    return (
        f'{name_of(definition.cls)}: service.sandbox is "strict" and @job does not declare {", ".join(unsaid)}; '
        f"write {', '.join(least[each] for each in unsaid)}, and in them what it needs"
    )


def _lacking(definition: Definition, need: Need) -> str | None:
    """Why a parameter of `run` is not to be had."""
    if need.optional:
        return None
    where = f"{name_of(definition.cls)}.run"
    if need.type in _OF_DATABASE and not definition.reach.database:
        return (
            f"{where}: its parameter {need.name!r} is the database's and none of its rights is; "
            'add one that ends in ".read" or ".write" to rights=(…) of @job, such as "outbox.write"'
        )
    if need.type in _MAKERS or need.type in _ATTEMPT_MAKERS:
        return None
    return (
        f"{where}: nothing provides its parameter {need.name!r}; write "
        f"@provider({need.type.__qualname__}) above a function that makes a {name_of(need.type)}"
    )


class Provided:
    """The values of one worker. `close` when it ends."""

    def __init__(self, config: Config, values: Mapping[type, object] | None = None) -> None:
        """`values`, by type, stand in the place of what would be made."""
        self.config = config
        self._given = values or {}
        self._values: dict[type, Any] = dict(self._given)
        self._stack = ExitStack()

    def anew(self, *, database: bool) -> Provided:
        """The same for a process that can use nothing of what was made here; without `database`, not its URL."""
        if database:
            return Provided(self.config, self._given)
        return Provided(msgspec.structs.replace(self.config, database=DatabaseConfig()), self._given)

    def arguments(self, definition: Definition, lease: Lease, attempt: ExitStack) -> dict[str, Any]:
        """What `run` is to be called with, by parameter; `attempt` is left when the attempt has ended."""
        found = {}
        for need in definition.needs:
            if need.type in self._values:
                found[need.name] = self._values[need.type]
            elif need.type in _OF_DATABASE and not definition.reach.database:
                continue  # it has a default, see `unservable`
            elif need.type in _ATTEMPT_MAKERS:
                found[need.name] = _enter(_ATTEMPT_MAKERS[need.type](self.config, lease), need.type, attempt)
            elif need.type in _MAKERS:
                value = _enter(_MAKERS[need.type](self.config), need.type, self._stack)
                found[need.name] = self._values[need.type] = value
        return found

    def close(self) -> None:
        self._stack.close()


def _enter(made: Any, wanted: type, stack: ExitStack) -> Any:
    """The value itself, or what a context manager yields that is no value of the wanted type."""
    if isinstance(made, AbstractContextManager) and not isinstance(made, wanted):
        return stack.enter_context(made)
    return made
