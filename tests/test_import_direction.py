"""All arrows of the house point down, and none closes a circle: imports in Python, includes in C++.

Deferred imports and those for type checking count like any other: who reads a module needs what it names.
"""

import ast
import graphlib
import re
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "gradc"

# From the ground up. A module imports from its own room and from those before it.
ROOMS = [
    "errors", "garbage", "options", "text_table", "bits", "ulps", "probes", "_C",
    "config", "torch_private", "csrc", "native", "environment", "accelerator", "journal", "ambient", "policy",
    "ir", "executor.core", "executor.cpu", "executor", "tape", "passes", "backends",
    "analysis", "nodes", "backward", "region",
    "walk", "capture", "symbolic", "replay", "compiled_autograd",
    "optim", "shadow", "frontend", "bindings", "parity", "traces", "reporting", "scripts", "testing", "pytest_plugin",
    "gradc",  # the public names, gradc/__init__.py
    "demo", "cli", "__main__",
]  # fmt: skip


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
SOURCES = {
    str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*")) if path.suffix in (".h", ".cpp")
}


def imports(tree):
    """The gradc modules that are imported anywhere in ``tree``; ``from package import module`` is the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "gradc")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gradc":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else node.module


def includes(text):
    """The files of gradc that a C++ file includes, as paths below ``gradc/``."""
    return re.findall(r'^#include "([^"]+)"', text, re.MULTILINE)


def room_of(parts):
    """The room that holds what ``parts`` lead to: the innermost, where one stands in another."""
    inner = ".".join(parts[:2])
    return inner if inner in ROOMS else parts[0]


def room_of_module(name):
    return room_of(name.split(".")[1:] or ["gradc"])


def room_of_file(path):
    return room_of(path.split("/"))


def upward(arrows, room_of):
    """The arrows that lead to a higher room, in words."""
    floor = {room: number for number, room in enumerate(ROOMS)}
    return [
        f"{source} imports {target}"
        for source, targets in arrows.items()
        for target in targets
        if floor[room_of(target)] > floor[room_of(source)]
    ]


def circle(arrows):
    """A circle of files, or [] if there is none."""
    try:
        list(graphlib.TopologicalSorter(arrows).static_order())
    except graphlib.CycleError as error:
        return error.args[1]
    return []


# A package's own __init__ re-exports its modules, so `import gradc.x.y` from inside x is no circle.
PYTHON = {module: {name for name in imports(tree) if name != module} for module, tree in MODULES.items()}
CPP = {path: set(includes(text)) for path, text in SOURCES.items()}


def test_every_room_is_known():
    rooms = {room_of_module(name) for name in MODULES} | {room_of_file(path) for path in SOURCES}
    assert not rooms - set(ROOMS), "add it to ROOMS, above the rooms that it imports"


def test_includes_name_files():
    assert not [(path, name) for path, names in CPP.items() for name in names if name not in SOURCES]


def test_python_arrows_point_down():
    wrong = upward(PYTHON, room_of_module)
    assert not wrong, "\n".join(wrong)


def test_cpp_arrows_point_down():
    wrong = upward(CPP, room_of_file)
    assert not wrong, "\n".join(wrong)


def test_no_circle_in_python():
    assert not circle(PYTHON)


def test_no_circle_in_cpp():
    assert not circle(CPP)


def test_the_guard_sees_deferred_imports_and_circles():
    tree = ast.parse("def f():\n    from gradc.frontend import compile\nif TYPE_CHECKING:\n    import gradc.reporting.explain")
    assert upward({"gradc.ir.program": list(imports(tree))}, room_of_module) == [
        "gradc.ir.program imports gradc.frontend.compile",
        "gradc.ir.program imports gradc.reporting.explain",
    ]
    assert upward({"executor/core/csrc/run.cpp": ["executor/cpu/csrc/sums.h"]}, room_of_file)
    assert set(circle({"a": {"b"}, "b": {"a"}, "c": set()})) == {"a", "b"}
