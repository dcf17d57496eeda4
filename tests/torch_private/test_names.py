"""Private names of torch stand in one room."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent.parent / "gradc"
# Ops have such names, and so have the modules that torch's documentation itself points to.
ALLOWED = (
    "torch.__",
    "torch.Tensor.__",
    "torch.ops",
    "torch._neg_view",
    "torch._C.DisableTorchFunctionSubclass",
    "torch.utils._python_dispatch",
    "torch.utils._pytree",
)
ATTRIBUTES = {"_cdata", "_input_metadata", "_sequence_nr", "_use_count", "_is_view", "_has_symbolic_sizes_strides"}


def dotted(node):
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return node.id if isinstance(node, ast.Name) else ""


def names(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield dotted(node)
            if node.attr in ATTRIBUTES:
                yield f"torch.{node.attr}"


def private(text):
    found = (name for name in names(ast.parse(text)) if name.startswith("torch.") and "._" in name)
    return sorted({name for name in found if not name.startswith(ALLOWED) and not any(a.startswith(name) for a in ALLOWED)})


def test_elsewhere_there_are_none():
    files = (path for path in PACKAGE.rglob("*.py") if not {"torch_private", "demo"} & set(path.parts))
    wrong = {str(path.relative_to(PACKAGE)): found for path in files if (found := private(path.read_text()))}
    assert not wrong, f"give them a name in gradc/torch_private: {wrong}"


def test_the_guard_sees_them():
    text = "import torch\nfrom torch._C import x\nx.untyped_storage()._cdata\ntorch._dynamo.reset()\ntorch.ops.aten._unique"
    assert private(text) == ["torch._C.x", "torch._cdata", "torch._dynamo", "torch._dynamo.reset"]
