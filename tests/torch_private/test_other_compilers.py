"""A process that imports gradc, or used it, sees torch and its other compilers as one that does not."""

from __future__ import annotations

import functools
import os
import pathlib
import shutil
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import config

import gradc
from gradc.ir.program import Program

ROOT = pathlib.Path(__file__).parent.parent.parent
BACKENDS = [
    "aot_eager",
    pytest.param("inductor", marks=pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")),
]


@functools.cache
def seen(what: str, backend: str) -> dict[str, str]:
    """What a process sees of torch, by name; see ``process``."""
    command = [sys.executable, "-m", "tests.torch_private.process", what, backend]
    without_caches = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}  # what another run left on disk would be counted as a hit
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT), **without_caches}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


@pytest.mark.parametrize("backend", BACKENDS)
def test_import_changes_nothing(backend: str) -> None:
    assert len(seen("imported", backend)) > 20_000
    assert seen("imported", backend) == seen("without", backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_after_gradc_was_used_other_compilers_do_the_same(backend: str) -> None:
    """Settings, graphs, counters, what hooks print; of torch's attributes only those differ that a patch names."""
    before, after = seen("without", backend), seen("used", backend)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    patched = {str(change) for patch in gradc.patches() for change in patch.changes}
    assert changed <= patched
    assert any(name.startswith("graph 0") for name in before) and "counters stats" in before


class Listener(nn.Module):
    """Calls its hooks, and says so."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.heard = nn.Linear(2, 2), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)

    def listen(self) -> None:
        def hook(*_: Any) -> None:
            self.heard += 1

        self.inner.register_forward_hook(hook)


def test_hooks_registered_later_are_noticed_in_every_thread() -> None:
    """Dynamo's settings are each thread's own: what is set where gradc is imported holds nowhere else."""
    module, x = Listener(), torch.ones(1, 2)

    def run() -> None:
        compiled = gradc.compile(module)
        compiled(x)
        module.listen()
        compiled(x)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert module.heard == 1


def test_a_compilation_of_others_inside_ours_is_under_the_users_settings() -> None:
    seen: list[tuple[str, bool, bool]] = []

    def note(where: str) -> None:
        seen.append((where, config.skip_nnmodule_hook_guards, config.record_runtime_overhead))

    def theirs(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        note("theirs")
        return graph.forward

    def ours(program: Program) -> Any:
        note("ours")
        torch.compile(lambda x: x + 1, backend=theirs)(torch.ones(2))
        note("ours")
        return gradc.backends.lookup_backend("eager")(program)

    gradc.register_backend("compiles_inside", ours)
    note("outside")
    with config.patch(record_runtime_overhead=False):
        note("outside")
        gradc.compile(lambda x: x * 2, backend="compiles_inside")(torch.ones(2))
    note("outside")
    assert seen == [
        ("outside", True, True),
        ("outside", True, False),
        ("ours", False, False),
        ("theirs", True, False),
        ("ours", False, False),
        ("outside", True, True),
    ]


def test_settings_are_restored_where_a_compilation_raises() -> None:
    with pytest.raises(Exception, match="runs autograd.Function as eager does"):
        gradc.compile(lambda x: Double.apply(x), fullgraph=True)(torch.ones(2, requires_grad=True))
    assert config.skip_nnmodule_hook_guards and config.record_runtime_overhead


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * (2 if torch.is_grad_enabled() else 2.0)
