"""The patches of torch: listed with their reasons, applied once, undone to the very objects that were there."""

from __future__ import annotations

import functools
import importlib
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.backends.distributed import DDPOptimizer
from torch._dynamo.variables.base import VariableTracker

import gradc
from gradc.errors import GradcError, VersionError
from gradc.frontend.dynamo import Backend
from gradc.options import DEFAULTS
from gradc.torch_private import patches as module
from gradc.torch_private.ours import options_of
from gradc.torch_private.patches import Patch, Patches, Place, Replace
from gradc.torch_private.version import TAKEN_FOR
from tests import forked
from tests.torch_private.probes import PROBES, WITHOUT


class Torch:
    """Stands in for a class of torch's."""

    def method(self) -> str:
        return "torch"

    @staticmethod
    def function() -> str:
        return "torch"


def shout(original: Any) -> Any:
    @functools.wraps(original)
    def call(*args: Any) -> str:
        return original(*args) + "!"

    return call


def patch(name: str = "shout", attribute: str = "method") -> Patch:
    return Patch(name, "Too quiet.", (Replace(Torch, attribute, shout),))


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before = dict(vars(Torch))
    yield
    for name in ("method", "function"):
        setattr(Torch, name, before[name])
    gradc.patches().apply()


def run_python(code: str, **environment: str) -> str:
    done = forked.python("-c", code, environment={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def places() -> dict[str, Any]:
    """What stands now where patches change torch."""
    changes = (change for patch in gradc.patches() for change in patch.changes if isinstance(change, Place))
    return {f"{change}": change.value for change in changes}


def test_each_has_a_reason_and_versions() -> None:
    assert len(gradc.patches()) >= 11
    assert len({patch.name for patch in gradc.patches()}) == len(gradc.patches())
    for patch in gradc.patches():
        assert patch.reason.endswith(".") and TAKEN_FOR in patch.versions and patch.changes
        assert patch.name in str(gradc.patches()) and patch.reason in str(gradc.patches())


def test_each_has_a_probe_that_is_there() -> None:
    assert {patch.name for patch in gradc.patches()} <= PROBES.keys() | WITHOUT.keys() and not PROBES.keys() & WITHOUT.keys()
    for node in PROBES.values():
        file, _, name = node.partition("::")
        assert f"def {name}" in pathlib.Path(file).read_text(), node


def test_undo_puts_back_the_very_objects() -> None:
    gradc.patches().undo()
    skipped = list(torch._dynamo.trace_rules.SKIP_DIRS)
    pattern = torch._dynamo.trace_rules.SKIP_DIRS_RE.pattern
    before = places()
    gradc.patches().apply()
    assert all(patch.is_applied for patch in gradc.patches())
    assert all(places()[name] is not before[name] for name in before)
    gradc.patches().undo()
    assert not any(patch.is_applied for patch in gradc.patches())
    assert all(places()[name] is before[name] for name in before)
    assert skipped == torch._dynamo.trace_rules.SKIP_DIRS
    assert torch._dynamo.trace_rules.SKIP_DIRS_RE.pattern == pattern


def test_undone_they_come_back_with_the_next_compilation() -> None:
    gradc.patches().undo()
    gradc.compile(lambda x: x * 2)
    assert all(patch.is_applied for patch in gradc.patches())


def test_applied_once() -> None:
    gradc.patches().apply()
    before = places()
    gradc.patches().apply()
    gradc.reset()
    gradc.compile(lambda x: x * 2)
    importlib.reload(module)
    gradc.patches.cache_clear()
    gradc.patches().apply()
    assert places() == before


def test_a_replacement_is_wrapped_and_inherited_names_go_again() -> None:
    original = Torch.__dict__["method"]
    patch().apply()
    assert Torch().method() == "torch!" and Torch.__dict__["method"].__wrapped__ is original
    patch().undo()
    assert Torch.__dict__["method"] is original
    absent = Patch("absent", "Missing.", (Replace(Torch, "absent", lambda _: lambda self: 1),))
    absent.apply()
    assert Torch().absent() == 1  # type: ignore[attr-defined]
    absent.undo()
    assert "absent" not in vars(Torch)


def test_two_on_one_place_are_undone_in_reverse_order() -> None:
    both = Patches((patch("first"), patch("second")))
    both.apply()
    both.apply()
    assert Torch().method() == "torch!!"
    with pytest.raises(GradcError, match=r"first cannot be undone: .*Torch.method was .*, by gradc's patch second"):
        both[0].undo()
    both.undo()
    assert Torch().method() == "torch"


def test_somebody_else_wrapped_it_since() -> None:
    patch().apply()
    Torch.method = shout(Torch.method)
    assert patch().is_applied
    patch().apply()
    assert Torch().method() == "torch!!"
    with pytest.raises(GradcError, match="shout cannot be undone"):
        patch().undo()


def test_options_are_found_under_the_wrappers_of_ddp() -> None:
    ddp = DDPOptimizer(2**25, backend_compile_fn=Backend(DEFAULTS))
    assert options_of(ddp.compile_fn) == DEFAULTS
    assert options_of(DDPOptimizer(2**25, backend_compile_fn=lambda *_: None).compile_fn) is None
    assert options_of(torch.compile(lambda x: x, backend="aot_eager")) is None


UNDER_DDP = """
import torch, gradc
from torch import distributed, nn
from gradc.bits import same_bits

class Scaled(nn.Linear):
    def forward(self, x):
        hidden = super().forward(x)
        return torch.addcdiv(hidden, hidden, hidden.abs() + 1, value=0.3)

distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
module, x, heard = Scaled(50, 50), torch.randn(2, 50), []
ddp = nn.parallel.DistributedDataParallel(module)
run = gradc.compile(ddp)
run(x)
module.register_forward_hook(lambda *_: heard.append(1))
print(same_bits(run(x), ddp(x)), len(heard), dict(gradc.counters["fallbacks"]))
distributed.destroy_process_group()
"""


def test_what_gradc_compiles_under_ddp_is_gradcs() -> None:
    """Dynamo cuts DDP's graphs by a backend of its own around ours, which was taken for somebody else's."""
    assert run_python(UNDER_DDP) == "True 2 {}\n"


def test_torch_compile_by_name_patches_before_the_first_graph() -> None:
    """A hook ends the first graph already: it is not met with Dynamo as it was."""
    graphs = run_python(
        "import torch\n"
        "def f(x):\n"
        "    hidden = x * 2\n"
        "    hidden.register_hook(lambda grad: grad * 3)\n"
        "    return hidden.tanh()\n"
        "torch.compile(f, backend='gradc')(torch.ones(3, requires_grad=True)).sum().backward()\n"
        "import gradc\n"
        "print(dict(gradc.counters['stats']), dict(gradc.counters['fallbacks']))"
    )
    assert graphs == "{'unique_graphs': 2} {}\n"


def test_compiled_autograd_takes_what_it_needs_when_it_is_enabled() -> None:
    applied = "print([patch.name for patch in gradc.patches() if patch.is_applied])\n"
    text = run_python(
        f"import gradc\n{applied}"
        f"with gradc.config.patch(compiled_autograd=False): pass\n{applied}"
        f"with gradc.config.patch(compiled_autograd=True): pass\n{applied}"
        f"gradc.patches()[1].undo()\ngradc.config.compiled_autograd = True\n{applied}"
        f"gradc.patches()[1].undo()\nwith gradc.compiled_autograd.enable(): pass\n{applied}"
    )
    before, after = "['log_names']\n", "['log_names', 'intercept_backward', 'tell_of_passes_as_in_eager']\n"
    assert text == before * 2 + after * 3
    assert run_python(f"import gradc\n{applied}", GRADC_COMPILED_AUTOGRAD="1") == after


OTHER_TORCH = "import torch, warnings\ntorch.__version__ = '2.99.0+cpu'\n"
WORKS_WITH = "gradc works with torch 2.13, 2.14, 2.15, but torch 2.99.0+cpu is imported."


def test_another_torch_is_refused() -> None:
    text = run_python(f"{OTHER_TORCH}try: import gradc\nexcept ImportError as error: print(type(error).__name__, error)")
    assert text == (
        f"VersionError {WORKS_WITH}\n"
        "  gradc reads torch's autograd graph through names that change between versions, so it does not guess.\n"
        "  Install one of these, say: pip install torch==2.13.0\n"
        "  GRADC_ALLOW_TORCH=1 in the environment lets it try: results may then differ from eager's.\n"
    )


def test_another_torch_is_tried_on_demand() -> None:
    text = run_python(
        f"{OTHER_TORCH}with warnings.catch_warnings(record=True) as warned:\n"
        "    warnings.simplefilter('always')\n"
        "    import gradc\n"
        "print(*(warning.message for warning in warned if 'gradc' in str(warning.message)), sep='\\n')",
        GRADC_ALLOW_TORCH="1",
    )
    assert text == f"{WORKS_WITH} GRADC_ALLOW_TORCH=1: it is tried all the same, unless a name is missing.\n"


def test_what_another_torch_lacks_is_told_at_once() -> None:
    """One name after the other would be missing where it is imported, in some fifty files."""
    text = run_python(
        f"{OTHER_TORCH}warnings.simplefilter('ignore')\n"
        "import torch._dynamo.variables.lists as lists, torch._dynamo.source as source\n"
        "del lists.RangeVariable, source.AttrSource\n"
        "try: import gradc\n"
        "except ImportError as error: print(type(error).__name__, error)",
        GRADC_ALLOW_TORCH="1",
    )
    told = "VersionError torch 2.99.0+cpu lacks names that gradc uses:\n  torch._dynamo.source.AttrSource: dynamo.py, "
    assert text.startswith(told)
    assert text.splitlines()[-1] == "  torch._dynamo.variables.lists.RangeVariable: dynamo_patches/builtin_types.py"


def test_a_name_that_torch_has_not_is_refused_before_anything_changes() -> None:
    class Torchs:
        here = len

    missing = Replace(Torchs, "gone", lambda original: original)
    patches = Patches((Patch("one", "A.", (Replace(Torchs, "here", lambda _: lambda: 1),)), Patch("two", "B.", (missing,))))
    with pytest.raises(VersionError, match=re.escape(f"torch {torch.__version__} lacks:\n  {missing}: two")):
        patches.apply()
    assert Torchs.here is len


def test_an_inherited_name_is_replaced_for_the_class_alone() -> None:
    class Base:
        def name(self) -> str:
            return "base"

    class Other(Base):
        def name(self) -> str:
            return f"other {super().name()}"

    class Derived(Base): ...

    class Both(Derived, Other): ...

    patch = Patch("one", "A.", (Replace(Derived, "name", lambda original: lambda self: f"new {original(self)}"),))
    patch.apply()
    assert (Base().name(), Derived().name(), Both().name()) == ("base", "new base", "new other base")
    patch.undo()
    assert "name" not in vars(Derived) and Both().name() == "other base"


def test_no_table_of_dynamos_keeps_what_was_replaced() -> None:
    """Since torch 2.14 Dynamo has tables of methods: a function that was replaced in its class alone would go on from there."""
    gradc.patches().apply()
    replaced = {id(original) for value in places().values() if (original := original_of(value)) is not None}
    assert len(replaced) > 80
    for kind in derived_from(VariableTracker):
        tables = {name: table for name, table in vars(kind).items() if name.startswith("tp_") and isinstance(table, dict)}
        for name, table in tables.items():
            kept = [key for key, entry in table.items() for part in parts_of(entry) if id(part) in replaced]
            assert not kept, f"{kind.__name__}.{name}: {kept}"


def original_of(value: Any) -> Any:
    layer = getattr(value, "_gradc_layer", None)
    return original_of(layer.original) or layer.original if layer is not None and callable(layer.original) else None


def parts_of(entry: Any) -> list[Any]:
    return [getattr(entry, name) for name in ("handler", "getter", "setter") if getattr(entry, name, None) is not None]


def derived_from(base: type) -> Iterator[type]:
    yield base
    for derived in base.__subclasses__():
        yield from derived_from(derived)
