"""What of the names that ``torch_private`` imports of torch is not there: all at once, before the first that is missing raises.

missing_names: () -> ["torch._dynamo.variables.lists.RangeVariable: dynamo_patches/builtin_types.py", ...]
"""

import ast
import importlib
import pathlib
from collections.abc import Iterator

_FOLDER = pathlib.Path(__file__).parent


def missing_names() -> list[str]:
    users: dict[tuple[str, str], list[str]] = {}
    for path in sorted(_FOLDER.rglob("*.py")):
        for name in _imported(ast.parse(path.read_text())):
            users.setdefault(name, []).append(str(path.relative_to(_FOLDER)))
    missing = {f"{module}.{name}": files for (module, name), files in users.items() if not _is_there(module, name)}
    return [f"{name}: {', '.join(dict.fromkeys(files))}" for name, files in sorted(missing.items())]


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """As a module is imported: what a function imports when it is called is asked for there."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            yield from ((str(node.module), alias.name) for alias in node.names)


def _is_there(module: str, name: str) -> bool:
    try:
        if hasattr(importlib.import_module(module), name):
            return True
        importlib.import_module(f"{module}.{name}")
    except ImportError:
        return False
    return True
