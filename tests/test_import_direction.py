"""Imports point one way: each room imports rooms of earlier layers only, and no two modules import each other."""

import ast
import graphlib
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "gradc"

# By the longest name that fits. A room may import its own layer's rooms, and those before.
LAYERS = [
    ["gradc.errors", "gradc.collector"],
    ["gradc.config", "gradc.torch_private", "gradc.report.record", "gradc.report.table", "gradc._C"],
    ["gradc.ir", "gradc.state"],
    ["gradc.executor", "gradc.partition"],
    ["gradc.backends"],
    ["gradc.aot", "gradc.engine", "gradc.optim"],
    ["gradc.frontend", "gradc.compiled_autograd"],
    ["gradc.report"],
    ["gradc"],
    ["gradc.demo", "gradc.cli"],
]


def module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def imports(nodes):
    """The gradc modules that these statements import; ``from package import module`` is the module."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "gradc")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gradc":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else node.module


def layer(module):
    names = [(len(name), i, name) for i, layer in enumerate(LAYERS) for name in layer]
    _, found, name = max(row for row in names if f"{module}.".startswith(f"{row[2]}."))
    assert name != "gradc" or module == "gradc", f"{module} is in no layer: add its room to LAYERS in {__file__}"
    return found


def test_rooms_import_earlier_layers_only():
    wrong = [
        f"{module} (layer {layer(module)}) imports {imported} (layer {layer(imported)})"
        for module, tree in MODULES.items()
        for imported in imports(ast.walk(tree))
        if layer(imported) > layer(module)
    ]
    assert not wrong, "\n".join(wrong)


def test_modules_do_not_import_each_other():
    # A package's own __init__ re-exports its modules, so `import gradc.x.y` from inside x is no cycle.
    graph = {module: {name for name in imports(tree.body) if name != module} for module, tree in MODULES.items()}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the cycle
