"""The floor plan: imports point downwards only, rooms are few, modules and functions stay small."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from commands import PROJECT

PACKAGE = PROJECT / "streamrf"
ROOMS = (  # each imports only those below it
    "cli", "api", "reports", "training", "models", "recipe", "solvers", "engines", "statistics", "features", "data",
    "support",
)  # fmt: skip
BESIDE = {"__init__", "__main__"}  # the public names and the command, which may import every room
MOST_FILE_LINES, MOST_FUNCTION_LINES = 400, 60
FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(path: Path) -> str:
    name = ".".join(path.relative_to(PROJECT).with_suffix("").parts)
    return name.removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


def imports(path: Path) -> set[str]:
    """Modules of the package that a file imports, inside functions and for type checkers too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "streamrf":
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in MODULES else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "streamrf"}
    return found


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def test_the_rooms_are_these():
    names = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert names - BESIDE == set(ROOMS)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_point_downwards(module):
    room = room_of(module)
    if room in BESIDE:
        return
    for other in imports(MODULES[module]):
        assert other in MODULES, f"{module} imports {other}, which does not exist"
        assert room_of(other) not in BESIDE, f"{module} imports the package itself"
        assert ROOMS.index(room_of(other)) >= ROOMS.index(room), f"{module} imports upwards: {other}"


def group_of(module: str) -> str:
    """A module's part of its room: a sub-package, or the module itself."""
    parts = module.split(".")
    return ".".join(parts[:3])


def test_no_parts_of_a_room_import_each_other():
    graph: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        for other in imports(path):
            here, there = group_of(module), group_of(other)
            if room_of(module) == room_of(other) and here != there and there.count(".") == 2 and here.count(".") == 2:
                graph.setdefault(here, set()).add(there)
    assert (cycle := find_cycle(graph)) is None, " -> ".join(cycle)


def find_cycle(graph: dict[str, set[str]]) -> list[str] | None:
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str] | None:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return None
        for other in sorted(graph.get(node, ())):
            if found := visit(other, [*path, node]):
                return found
        done.add(node)
        return None

    return next((found for node in sorted(graph) if (found := visit(node, []))), None)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_and_functions_are_small(path):
    text = path.read_text()
    assert text.count("\n") <= MOST_FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= MOST_FUNCTION_LINES, f"{node.name} has {length} lines"
