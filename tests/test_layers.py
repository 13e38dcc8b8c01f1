"""The one-way order of imports: a module imports only from the layers below its own, or from its own."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "runtime").rglob("*.py"))
MODEL = {"errors", "model"}
SETTINGS = MODEL | {"rules", "edges", "config", "definition", "providers", "registry"}
ACTORS = SETTINGS | {"actors"}
USE = ACTORS | {"queue", "queue_async", "testing", "foreground", "pytest_plugin", "sim"}
LAYERS = {  # layer: what of this package it may import
    "errors": set(),
    "model": MODEL,
    "rules": MODEL | {"rules"},
    "edges": MODEL | {"edges"},
    "config": SETTINGS,
    "definition": SETTINGS,
    "providers": SETTINGS,
    "registry": SETTINGS,
    "actors": ACTORS,
    "queue": USE,
    "queue_async": USE,
    "testing": USE,
    "foreground": USE,
    "pytest_plugin": USE,
    "sim": USE,
    "cli": USE | {"cli"},
    "__main__": {"cli"},
    "__init__": USE,
}
PURE = {"errors", "model", "rules"}
IMPURE = {
    "logging", "multiprocess", "multiprocessing", "os", "psycopg", "psycopg_pool", "random", "secrets", "select",
    "selectors", "signal", "socket", "subprocess", "sys", "tempfile", "threading", "time", "uuid",
}  # fmt: skip


def imports(path: Path) -> set[str]:
    """All that a module imports, wherever in it, with dots."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def of_ours(path: Path) -> set[str]:
    """The layers that a module imports from."""
    layers = set()
    for name in imports(path) - {"runtime.__version__"}:
        package, _, rest = name.partition(".")
        if package == "runtime":
            first = rest.partition(".")[0]
            layers.add(first if first in LAYERS else "__init__")
    return layers


def layer(path: Path) -> str:
    return path.relative_to(ROOT / "runtime").parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_from_below(path: Path) -> None:
    assert of_ours(path) <= LAYERS[layer(path)]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_imports_what_users_write(path: Path) -> None:
    assert "handlers" not in {name.partition(".")[0] for name in imports(path)}


@pytest.mark.parametrize(
    "path", [path for path in MODULES if layer(path) in PURE], ids=lambda path: str(path.relative_to(ROOT))
)
def test_pure_modules_touch_nothing(path: Path) -> None:
    assert not {name.partition(".")[0] for name in imports(path)} & IMPURE


def test_the_supervisor_knows_no_store() -> None:
    """It forks: a connection, or a thread of one, would be its children's too."""
    names = imports(ROOT / "runtime/actors/supervisor.py")
    stores = ("psycopg", *(f"runtime.edges.{name}" for name in ("store", "postgres", "memory", "statements")))
    assert not [name for name in names if name.startswith(stores)]
