"""What a gradc compilation changes for the rest of the process: what its patches name, and counters."""

from __future__ import annotations

import pathlib

import torch

import gradc
from tests import forked
from tests.oracle import check, constant

ROOT = pathlib.Path(__file__).parent.parent.parent
# Caches, ids and lazy imports of torch's, which say what happened and not what will.
COUNTED = {
    "torch._subclasses.fake_tensor.FakeTensorMode.cache_hits",
    "torch._subclasses.fake_tensor.FakeTensorMode.cache_misses",
    "torch._subclasses.meta_utils.DESCRIBER_NEXT_ID",
    "torch.autograd.profiler._cupti_monitor_checked",
    "torch.autograd.profiler._cupti_monitor_module",
    "torch.utils.hooks.RemovableHandle.next_id",
}


def run_python(*arguments: str) -> str:
    done = forked.python(*arguments, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_only_what_a_patch_names_is_changed() -> None:
    changed = set(run_python("-m", "tests.torch_private.effects").split("\n")) - {""}
    patched = {str(change) for patch in gradc.patches() for change in patch.changes}
    assert changed - patched - COUNTED == set()
    assert "torch._dynamo.convert_frame.ConvertFrame.__call__" in changed


FIRST_OF_ALL = """
import torch, gradc
from torch import nn
model, x = nn.Linear(2, 2), torch.ones(1, 2)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
def closure():
    optimizer.zero_grad()
    loss = model(x).square().sum()
    loss.backward()
    return loss
gradc.compile(lambda: optimizer.step(closure))()
print(dict(gradc.counters["fallbacks"]))
"""


def test_an_optimizer_that_is_compiled_first_of_all_is_counted() -> None:
    """Dynamo disabled LBFGS.step for good at the first compilation of a process: the step ran eagerly, uncounted."""
    assert run_python("-c", FIRST_OF_ALL) == "{'optimizer': 1}\n"


VALIDATES = """
import torch, gradc
gradc.compile(lambda x: x * 2)(torch.ones(2))
try: torch.distributions.Normal(torch.ones(2), -torch.ones(2))
except ValueError as error: print(str(error).split(" (")[0])
"""


def test_distributions_validate_after_a_compilation() -> None:
    assert run_python("-c", VALIDATES) == "Expected parameter scale\n"


def test_distributions_validate_in_compiled_code() -> None:
    def step(compile, x):  # type: ignore[no-untyped-def]
        def density(x: torch.Tensor) -> torch.Tensor:
            try:
                return torch.distributions.Normal(x, x).log_prob(x)
            except ValueError:
                return x

        torch.distributions.Distribution.set_default_validate_args(True)  # other compilers turn it off
        compiled = compile(density)
        return compiled(x), compiled(x.abs())

    check(step, constant(4), allow_fallback=True)


def test_what_torchscript_traces_inside_is_not_compiled() -> None:
    def step(compile, x):  # type: ignore[no-untyped-def]
        return compile(lambda x: torch.jit.trace(lambda x: x.sin() * 2, (x,))(x) * 2)(x)

    assert "tracing failed" not in check(step, constant(4), allow_fallback=True).fallbacks
