"""Handlers by kind: what a definition must be, payloads there and back, and modules found or broken."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import math
import subprocess
import sys
import timeit
import tomllib
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import runtime
from runtime import NO_RETRY, Context, Job, Retry, WorkTable, definition, exponential, fixed, job, registry
from runtime.definition import Definition
from runtime.errors import DefinitionError, PayloadInvalid, UnknownKind
from runtime.model.messages import Limits
from runtime.registry import Registry, load

Write = Callable[[dict[str, str]], None]


@pytest.fixture(autouse=True)
def defined(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Each test defines kinds of its own."""
    monkeypatch.setattr(registry, "DEFINED", Registry())
    return registry.DEFINED


@pytest.fixture
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes modules into a directory at the head of `sys.path`, and forgets what was imported from it."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(texts: dict[str, str]) -> None:
        for name, text in texts.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def kind(name: str, cls: str = "") -> str:
    """The text of a module that defines one kind."""
    return (
        "from runtime import NO_RETRY, Job, job\n"
        f"@job({name!r}, retry=NO_RETRY)\n"
        f"class {cls or name.title()}(Job):\n"
        "    def run(self, ctx): pass\n"
    )


class Color(enum.Enum):
    RED = "red"


class Point(msgspec.Struct):
    x: float
    y: float | None = None


@dataclasses.dataclass
class Box:
    corner: Point


class Work(Job):
    """A base, for tests: whatever is defined below only needs fields."""

    def run(self, ctx: Context) -> None: ...


class Everything(Work):
    text: str
    number: float = 0.0
    maybe: float | None = None
    count: int = 0
    points: list[Point] = msgspec.field(default_factory=list)
    anything: Any = None
    color: Color = Color.RED
    mode: Literal["a", "b"] = "a"
    when: datetime | None = None
    keyed: dict[int, Box] = msgspec.field(default_factory=dict)
    money: Decimal = Decimal(0)
    one: uuid.UUID | None = None
    blob: bytes = b""
    pair: tuple[int, str] = (1, "")
    tags: frozenset[str] = frozenset()


def define(cls: type[Job] = Everything, **options: Any) -> Definition:
    options = {"kind": "everything", "retry": NO_RETRY} | options
    job(options.pop("kind"), **options)(cls)
    return registry.DEFINED.definition_of(cls)


# -- definitions


def test_a_definition_says_what_bounds_its_kind() -> None:
    definition = define(
        kind="thumbnail",
        retry=Retry(5, exponential(1, 3600), jitter=0.1),
        timeout=300,
        queue="images",
        priority=2,
        max_crashes=1,
        on_crash="dead",
        stall_after=60,
        memory_limit="512MiB",
        final=(ValueError,),
    )
    assert (definition.kind, definition.queue, definition.priority) == ("thumbnail", "images", 2)
    assert definition.final == (ValueError,)
    assert definition.limits(900.0) == Limits(
        timeout_s=300,
        stall_s=60,
        retries=5,
        delay_first_s=1,
        delay_factor=2.0,
        delay_cap_s=3600,
        jitter=0.1,
        max_crashes=1,
        crash_retries=False,
        memory_bytes=512 * 2**20,
    )


def test_what_is_left_out_has_a_default() -> None:
    definition = define()
    assert (definition.queue, definition.priority, definition.timeout_s) == ("default", 5, None)
    assert definition.limits(900.0) == Limits(timeout_s=900.0)
    assert define(retry=Retry(3, fixed(2))).limits(1.0).delay_cap_s == 2


def test_retry_must_be_said() -> None:
    with pytest.raises(TypeError, match="retry"):
        job("careless")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kind": ""}, "kind='': write"),
        ({"kind": "ü" * 33}, "64 bytes"),
        ({"kind": "two words"}, "without spaces"),
        ({"kind": "a\nb"}, "without spaces"),
        ({"kind": "\ud800"}, "kind="),
        ({"kind": 7}, "kind=7"),
        ({"queue": "q" * 49}, "48 bytes"),
        ({"queue": "@q"}, '"@"'),
        ({"queue": "*"}, '"*"'),
        ({"priority": 10}, "priority=10: write a whole number from 0 to 9"),
        ({"priority": -1}, "priority=-1"),
        ({"priority": True}, "priority=True"),
        ({"timeout": 0}, "timeout=0: write a number of seconds"),
        ({"timeout": math.inf}, "timeout=inf"),
        ({"timeout": math.nan}, "timeout=nan"),
        ({"timeout": 1e12}, "timeout=1000000000000.0"),
        ({"timeout": "5m"}, "timeout='5m'"),
        ({"timeout": 86_401}, "timeout=86401: kind 'everything' may take a day, 86400 s"),
        ({"stall_after": 0}, "stall_after=0"),
        ({"max_crashes": 0}, "max_crashes=0"),
        ({"on_crash": "again"}, '"retry" or "dead"'),
        ({"memory_limit": "many"}, '"512MiB"'),
        ({"memory_limit": "9" * 400}, '"512MiB"'),
        ({"memory_limit": 0}, "memory_limit=0"),
        ({"memory_limit": 1.5}, "memory_limit=1.5"),
        ({"final": ValueError}, "final="),
        ({"final": ("ValueError",)}, "final="),
        ({"final": (ValueError,)}, "with NO_RETRY every failure is the last"),
        ({"kicks": "other"}, 'write a tuple of kinds, such as ("other-kind",)'),
        ({"kicks": (1,)}, "kicks=(1,)"),
        ({"kicks": ("",)}, "kicks=('',)"),
        ({"retry": 3}, "Retry(5)"),
        ({"retry": Retry(-1)}, "retry.times=-1"),
        ({"retry": Retry(3, 5)}, "Retry(5)"),
        ({"retry": Retry(3, fixed(-1))}, "retry.backoff.first_s=-1"),
        ({"retry": Retry(3, fixed(math.inf))}, "retry.backoff.first_s=inf"),
        ({"retry": Retry(3, exponential(10, 5))}, "not below the first"),
        ({"retry": Retry(3, exponential(1, 10, 0.5))}, "retry.backoff.factor=0.5"),
        ({"retry": Retry(3, jitter=2)}, "retry.jitter=2"),
    ],
)
def test_a_wrong_option_is_refused_with_class_option_and_remedy(options: Any, says: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        define(**options)
    assert "test_registry.Everything: " in str(caught.value)
    assert says in str(caught.value)
    assert registry.DEFINED.kinds == ()


class Opaque:
    pass


class Holder(msgspec.Struct):
    inner: list[Opaque]


@pytest.mark.parametrize(
    "type_",
    [
        object,
        complex,
        Opaque,
        Path,
        collections.abc.Callable[[int], int],
        list[Opaque],
        dict[str, object],
        dict[tuple[int, int], str],
        dict[Opaque, int],
        int | Opaque,
        Holder,
        str | datetime,
        msgspec.Raw,
        msgspec.msgpack.Ext,
    ],
)
def test_a_field_that_json_cannot_carry_back_is_refused_by_name(type_: Any) -> None:
    cls = msgspec.defstruct("Odd", [("good", int), ("bad", type_)], bases=(Work,), module=__name__)
    with pytest.raises(DefinitionError, match=r"test_registry\.Odd\.bad: "):
        define(cls)


class Unresolved(Work):
    bad: list[Nowhere]  # type: ignore[name-defined]  # noqa: F821


class Itself(Work):
    bad: Itself | None = None


def test_a_type_that_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(DefinitionError, match=r"Unresolved\.bad: .*'Nowhere'.*TYPE_CHECKING"):
        define(Unresolved)
    define(Itself)  # the class is there by now, which it is not for a decorator


def test_a_job_that_holds_itself_is_told_to_nest_a_struct(handlers: Write) -> None:
    text = kind("itself").replace("    def", "    bad: 'Itself | None' = None\n    def")
    handlers({"self_holding": text})
    _, broken = load(["self_holding"])
    assert "Itself.bad: " in broken["self_holding"]
    assert "msgspec.Struct of its own" in broken["self_holding"]


class NoRun(Job): ...


class NoContext(Job):
    def run(self) -> None: ...  # type: ignore[override]


class Async(Job):
    async def run(self, ctx: Context) -> None: ...


class Generator(Job):
    def run(self, ctx: Context) -> Iterator[int]:
        yield 1


class FieldRun(Job):
    run: int = 0  # type: ignore[assignment]


class Static(Job):
    @staticmethod
    def run(ctx: Context) -> None: ...  # type: ignore[override]


@pytest.mark.parametrize("cls", [NoRun, NoContext, Async, Generator, FieldRun, Static])
def test_the_work_is_a_plain_method_that_takes_a_context(cls: type[Job]) -> None:
    with pytest.raises(DefinitionError, match=rf"{cls.__name__}.*run"):
        define(cls)


def test_what_is_not_a_job_is_refused() -> None:
    for thing in (Opaque, lambda ctx: None, msgspec.Struct):
        with pytest.raises(DefinitionError, match=r"\(Job\)"):
            job("thing", retry=NO_RETRY)(thing)


def test_a_kind_has_one_class(handlers: Write) -> None:
    handlers({"first": kind("scale", "One"), "second": kind("scale", "Two")})
    found, broken = load(["first", "second"])
    assert list(broken) == ["second"]
    assert "by first.One and second.Two" in broken["second"]
    assert found.get("scale").cls.__name__ == "One"


def test_one_file_under_two_names_is_one_class(handlers: Write) -> None:
    handlers({"program": kind("scale")})
    load(["program"])
    first = sys.modules.pop("program").Scale
    found, broken = load(["program"])
    second = sys.modules["program"].Scale
    assert not broken
    assert first is not second
    assert found.get("scale").cls is second
    assert found.definition_of(first).kind == found.definition_of(second).kind == "scale"


def test_a_kind_or_class_that_nobody_defined_is_refused() -> None:
    define(kind="known")
    with pytest.raises(UnknownKind, match="known: known"):
        registry.DEFINED.get("unknown")
    for undefined in (Unresolved, NoRun(), "known"):
        with pytest.raises(DefinitionError, match="has no kind"):
            registry.DEFINED.definition_of(undefined)


# -- payloads


FULL = Everything(
    text="ü",
    number=0.5,
    points=[Point(1.0)],
    anything={"a": [1, None, "x\\u0000"]},
    when=datetime(2026, 1, 1, tzinfo=UTC),
    keyed={1: Box(Point(1.0, 2.0))},
    money=Decimal("1.10"),
    one=uuid.UUID(int=1),
    blob=b"\0",
    pair=(2, "b"),
    tags=frozenset({"t"}),
)


def test_a_payload_comes_back_as_it_was() -> None:
    definition = define()
    assert definition.decode(definition.encode(FULL)) == FULL
    assert '"text":"ü"' in definition.encode(FULL)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(),
    number=st.floats(allow_nan=False, allow_infinity=False),
    anything=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.floats(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
)
def test_a_payload_comes_back_or_is_refused_by_name(text: str, number: float, anything: Any) -> None:
    definition = define()
    sent = Everything(text=text, number=number, anything=anything)
    if any(holds_unstorable(value) for value in (text, anything)):
        with pytest.raises(PayloadInvalid, match=r"text: |anything.*: "):
            definition.encode(sent)
    else:
        assert definition.decode(definition.encode(sent)) == sent


def holds_unstorable(value: Any) -> bool:
    match value:
        case float():
            return not math.isfinite(value)
        case str():
            return "\0" in value
        case list():
            return any(map(holds_unstorable, value))
        case dict():
            return any(map(holds_unstorable, [*value, *value.values()]))
    return False


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"number": math.nan}, "number: is nan"),
        ({"maybe": math.inf}, "maybe: is inf"),
        ({"points": [Point(1.0), Point(1.0, -math.inf)]}, "points[1].y: is -inf"),
        ({"keyed": {1: Box(Point(math.nan))}}, "keyed.1.corner.x: is nan"),
        ({"anything": [{"deep": math.nan}]}, "anything[0].deep: is nan"),
        ({"text": "a\0b"}, "text: holds the character NUL"),
        ({"anything": {"a\0b": 1}}, "anything: a key: holds the character NUL"),
        ({"anything": {"a\nb": {"k" * 99: math.nan}}}, f"anything['a\\nb']['{'k' * 64}']: is nan"),
        ({"text": "\ud800"}, "text: holds a lone surrogate"),
        ({"anything": {"\ud800": 1}}, "anything: holds a lone surrogate"),
        ({"text": 5}, "text: Expected `str`, got `int`"),
        ({"count": 1.5}, "count: Expected `int`, got `float`"),
        ({"count": None}, "count: Expected `int`, got `null`"),
        ({"points": [{"x": "1"}]}, "points[0].x: Expected `float`, got `str`"),
        ({"mode": "c"}, "mode: is none of the values that its type allows"),
        ({"anything": Opaque()}, "anything: Encoding objects of type Opaque is unsupported"),
        ({"anything": {(1, 2): 3}}, "anything: Only dicts"),
        ({"anything": [None, msgspec.Raw(b"nul")]}, "holds a msgspec.Raw that is not JSON"),
        ({"text": "x" * (definition.TEXT_BYTES + 1)}, "more than 67108864"),
    ],
)
def test_a_value_that_cannot_be_stored_is_refused_at_push(change: dict[str, Any], says: str) -> None:
    definition = define()
    with pytest.raises(PayloadInvalid) as caught:
        definition.encode(msgspec.structs.replace(FULL, **change))
    assert says in caught.value.problem
    assert caught.value.kind == "everything"


def nested(depth: int) -> Any:
    value: Any = None
    for _ in range(depth):
        value = [value]
    return value


def test_endless_and_deep_values_are_refused() -> None:
    definition = define()
    endless: list[Any] = []
    endless.append(endless)
    for value in (endless, nested(50_000)):
        with pytest.raises(PayloadInvalid, match="anything: is nested too deeply"):
            definition.encode(Everything(text="", anything=value))
        with pytest.raises(PayloadInvalid, match="result: is nested too deeply"):
            definition.encode_result(value)


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ("{}", "text: is missing"),
        ('{"text": "a", "nubmer": 1}', "nubmer: is not a field of this kind"),
        ('{"text": 1}', "text: Expected `str`, got `int`"),
        ('{"text": "", "points": [{}]}', "points[0].x: is missing"),
        ('{"text": "", "number": 1e400}', "number: Number out of range"),
        ('{"text": "", "anything": 1e400}', "anything: Number out of range"),
        ('{"text": "", "number": 1' + "0" * 400 + "}", "number: Number out of range"),
        ('{"text": "", "when": "20000-01-01T00:00:00Z"}', "when: Invalid RFC3339"),
        ('{"text": "", "anything": ' + "[" * 5000 + "]" * 5000 + "}", "is nested too deeply"),
        ("[" * 100_000, "Expected `object`, got `array`"),
        ("null", "Expected `object`, got `null`"),
        ("", "is not JSON"),
        ('{"text": ', "is not JSON"),
        ('{"text": "\ud800"}', "is not JSON"),
    ],
    ids=str,
)
def test_a_row_that_does_not_fit_is_refused_by_name(payload: str, says: str) -> None:
    with pytest.raises(PayloadInvalid) as caught:
        define().decode(payload)
    assert says in caught.value.problem


def test_a_number_with_more_digits_than_python_reads_is_refused() -> None:
    with pytest.raises(PayloadInvalid, match="anything: "):
        define().decode('{"text": "", "anything": 1' + "0" * 5000 + "}")
    with pytest.raises(PayloadInvalid, match="result: "):
        define().encode_result(10**5000)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ("cat.png", '"cat.png"'),
        ({"a": (1, None)}, '{"a":[1,null]}'),
        ([None, msgspec.Raw(b'{"a": 1e400}')], '[null,{"a": 1e400}]'),
        (Point(1.0), '{"x":1.0,"y":null}'),
    ],
)
def test_a_result_becomes_json(value: object, text: str) -> None:
    assert define().encode_result(value) == text


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (math.nan, "result: is nan"),
        ([0.0, {"a": math.inf}], "result[1].a: is inf"),
        ("\0", "result: holds the character NUL"),
        ("\ud800", "result: holds a lone surrogate"),
        (Opaque(), "result: Encoding objects of type Opaque is unsupported"),
        ({None: 1}, "result: Only dicts"),
        ([None, msgspec.Raw(b"nul")], "result: holds a msgspec.Raw"),
        (msgspec.Raw(b"garbage"), "result: holds a msgspec.Raw"),
        (msgspec.Raw(b'{"a": "\\u0000"}'), "result.a: holds the character NUL"),
        (msgspec.Raw(b"[" * 5000 + b"]" * 5000), "result: is nested too deeply"),
    ],
)
def test_a_result_that_cannot_be_stored_is_refused(value: object, says: str) -> None:
    with pytest.raises(PayloadInvalid) as caught:
        define().encode_result(value)
    assert caught.value.problem.startswith(says)


class Tiny(Work):
    path: str
    width: int = 256


def test_a_tiny_payload_costs_microseconds() -> None:
    definition = define(Tiny)
    tiny, text = Tiny("cat.png"), '{"path": "cat.png"}'
    for call in (lambda: definition.decode(text), lambda: definition.encode(tiny)):
        assert min(timeit.repeat(call, number=2000, repeat=5)) / 2000 < 20e-6, "tens of times what it takes"


# -- modules


def test_a_package_is_imported_with_every_module_in_it(handlers: Write) -> None:
    handlers(
        {
            "shop/__init__": "",
            "shop/images": kind("images"),
            "shop/deep/__init__": kind("deep"),
            "shop/deep/er/sound": kind("sound"),
            "shop/plain/mail": kind("mail"),
            "shop/__main__": "raise RuntimeError('a program was started')",
        }
    )
    found, broken = load(["shop"])
    assert broken == {}
    assert found.kinds == ("deep", "images", "mail", "sound")
    assert load(["shop", "shop.images"])[1] == {}, "again is harmless"


def test_a_plain_directory_is_a_package_too(handlers: Write, tmp_path: Path) -> None:
    handlers({"plain/images": kind("images"), "plain/deep/mail": kind("mail")})
    (tmp_path / "plain" / "loop").symlink_to(tmp_path / "plain")
    found, broken = load(["plain"])
    assert broken == {}
    assert found.kinds == ("images", "mail")


def test_one_broken_module_does_not_stop_the_others(handlers: Write) -> None:
    handlers(
        {
            "mixed/a_helper": "def fail():\n    return 1 / 0\n",
            "mixed/b_raises": kind("half") + "from mixed import a_helper\na_helper.fail()\n",
            "mixed/c_exits": "import sys\nsys.exit('no licence')\n",
            "mixed/d_syntax": "x = = 1\n",
            "mixed/e_lacks": "import no_such_library\n",
            "mixed/f_wrong": kind("wrong").replace("retry=NO_RETRY", "retry=3"),
            "mixed/g_chatty": "raise ValueError('x' * 100_000)\n",
            "mixed/z_good": kind("good"),
        }
    )
    found, broken = load(["mixed"])
    assert found.kinds == ("good",), "a kind of a module that stopped half-way is left out"
    names = ["b_raises", "c_exits", "d_syntax", "e_lacks", "f_wrong", "g_chatty"]
    assert list(broken) == [f"mixed.{name}" for name in names]
    assert "b_raises.py" in broken["mixed.b_raises"]
    assert "line 6" in broken["mixed.b_raises"]
    assert "return 1 / 0" in broken["mixed.b_raises"]
    assert broken["mixed.b_raises"].endswith("ZeroDivisionError: division by zero")
    assert "registry.py" not in broken["mixed.b_raises"]
    assert "importlib" not in broken["mixed.b_raises"]
    assert broken["mixed.c_exits"].endswith("SystemExit: no licence")
    assert "d_syntax.py" in broken["mixed.d_syntax"]
    assert "line 1" in broken["mixed.d_syntax"]
    assert broken["mixed.e_lacks"].endswith("No module named 'no_such_library'")
    assert "mixed.f_wrong.Wrong: retry=3" in broken["mixed.f_wrong"]
    assert len(broken["mixed.g_chatty"]) <= registry.REASON_CHARS


def test_a_module_that_is_mended_defines_its_kinds(handlers: Write) -> None:
    handlers({"mended": kind("half") + "1 / 0\n"})
    assert load(["mended"])[0].kinds == ()
    handlers({"mended": kind("half") + "# longer, so that no stale bytecode is taken for it\n"})
    assert load(["mended"])[0].kinds == ("half",)


def test_a_module_that_is_not_found_is_told_where_it_was_sought(tmp_path: Path, handlers: Write) -> None:
    found, broken = load(["no_such_module", "json.nope", "", "..up"])
    assert found.kinds == ()
    assert broken["no_such_module"].startswith("no module 'no_such_module' on sys.path: ")
    assert str(tmp_path) in broken["no_such_module"]
    assert "json.nope" in broken["json.nope"]
    assert set(broken) == {"no_such_module", "json.nope", "", "..up"}


def test_a_directory_that_another_package_hides_is_named(
    handlers: Write, tmp_path: Path, monkeypatch: Any
) -> None:
    handlers({"early/hidden/mine": kind("mine"), "late/hidden/__init__": ""})
    for name in ("late", "early"):
        monkeypatch.syspath_prepend(str(tmp_path / name))
    found, broken = load(["hidden"])
    assert found.kinds == ()
    assert str(tmp_path / "early" / "hidden") in broken["hidden"]
    assert "__init__.py" in broken["hidden"]


def test_ctrl_c_while_modules_are_imported_is_not_swallowed(handlers: Write) -> None:
    handlers({"interrupted": "raise KeyboardInterrupt\n"})
    with pytest.raises(KeyboardInterrupt):
        load(["interrupted"])


def test_handlers_are_sought_beside_the_configuration_then_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert registry.search_path(None) == [str(tmp_path)]
    assert registry.search_path(Path("configs/tenure.toml")) == [str(tmp_path), str(tmp_path / "configs")]
    assert registry.search_path(Path("a/configs/tenure.toml"))[0] == str(tmp_path / "a"), (
        "the project's directory"
    )
    assert registry.search_path(tmp_path / "tenure.toml") == [str(tmp_path)]


# -- the public names


def test_importing_the_package_brings_in_no_database_and_no_command_line() -> None:
    code = (
        "import sys, runtime; print(*sorted(set(sys.modules) & {'psycopg', 'psycopg_pool', 'typer', 'rich'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_version_is_the_one_of_the_distribution() -> None:
    pyproject = Path(__file__).parent.parent / "pyproject.toml"
    assert runtime.__version__ == tomllib.loads(pyproject.read_text("utf-8"))["project"]["version"]


def test_each_public_name_is_there() -> None:
    for name in set(runtime.__all__) - {"Queue"}:
        assert hasattr(runtime, name)
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = runtime.nope


# -- kicks


def kicking(name: str, *kicks: str, options: str = "", fields: str = "") -> str:
    """The text of a module that defines one kind, which kicks others."""
    return (
        "from runtime import NO_RETRY, Job, every, job\n"
        f"@job({name!r}, retry=NO_RETRY, kicks={kicks!r}, {options})\n"
        f"class Kicking(Job):\n"
        f"    {fields}\n"
        "    def run(self, ctx): pass\n"
    )


def test_what_is_kicked_may_be_defined_later(handlers: Write) -> None:
    handlers({"first": kicking("a", "b", "c", "b"), "second": kicking("b", "c"), "third": kicking("c")})
    found, broken = load(["first", "second", "third"])
    assert broken == {}
    assert found.get("a").kicks == ("b", "c")
    assert found.kick_of("c").payload == "{}"


def test_kinds_that_kick_one_another_in_a_cycle_are_left_out_and_the_cycle_is_named(handlers: Write) -> None:
    handlers(
        {"one": kicking("a", "b"), "two": kicking("b", "c"), "three": kicking("c", "b"), "four": kicking("d")}
    )
    found, broken = load(["one", "two", "three", "four"])
    assert found.kinds == ("a", "d")
    assert set(broken) == {"kind b", "kind c"}
    assert "two.Kicking: kicks=('c',): they go round in a cycle, b → c → b" in broken["kind b"]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("", """no handler has the kind 'b'; write @job("b", …) above a class"""),
        (kicking("b", fields="path: str"), "Missing required argument 'path'"),
        (kicking("b", fields="path: str"), "give each a default"),
        (kicking("b", options="schedule=every(60), overlap='queue', missed='drop'"), 'write "skip"'),
    ],
    ids=["unknown", "field", "remedy", "overlap"],
)
def test_a_kick_of_what_cannot_be_kicked_says_what_to_write(handlers: Write, target: str, says: str) -> None:
    handlers({"kicker": kicking("a", "b"), "target": target})
    found, broken = load(["kicker", "target"])
    assert "a" not in found.kinds
    assert "kicker.Kicking: kicks=('b',): " in broken["kind a"]
    assert says in broken["kind a"]


def test_a_kind_that_is_kicked_has_at_most_55_bytes() -> None:
    class Fieldless(Work):
        pass

    define(Fieldless, kind="k" * 55).kick()
    with pytest.raises(DefinitionError, match="55 bytes"):
        define(Fieldless, kind="k" * 56).kick()


def test_work_tables_are_found_in_the_modules_of_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    table = WorkTable("outbox")
    for name, found in (
        ("wt.mail", table),
        ("wt.again", WorkTable("outbox")),
        ("wtother", WorkTable("other")),
    ):
        module = ModuleType(name)
        module.TABLE = found  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    assert registry.work_tables(["wt"]) == {"outbox": table}
    sys.modules["wt.again"].TABLE = WorkTable("outbox", max_attempts=3)  # type: ignore[attr-defined]
    with pytest.raises(DefinitionError, match="there are two"):
        registry.work_tables(["wt"])


@pytest.mark.parametrize(
    "given",
    [
        {"name": ""},
        {"name": "a.b.c"},
        {"name": "x" * 64},
        {"name": "a", "due": "id"},
        {"name": "a", "due": ""},
        {"name": "a", "max_attempts": 0},
        {"name": "a", "max_attempts": True},
        {"name": "a", "backoff": 60},
    ],
    ids=str,
)
def test_a_work_table_that_could_not_be_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=r"WorkTable\("):
        WorkTable(**given)
