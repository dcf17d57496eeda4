"""A torch that is not one of the releases that were tested is looked at before anything is compiled, in the user's process."""

from __future__ import annotations

import os
import subprocess

import pytest
import torch

import gradc
from gradc.frontend import begin, probe
from gradc.frontend.dynamo import Backend
from gradc.options import CompileOptions
from gradc.probes import PROBES
from gradc.torch_private.version import is_tested
from tests import forked

RELEASE = torch.__version__.split("+")[0]
OWN_BUILD = f"import torch\ntorch.__version__ = '{RELEASE}+git1a2b3c'\n"
COMPILE = """
import gradc
with torch.inference_mode(), torch.device("meta"):
    compiled = gradc.compile(torch.sin)
x = torch.ones(3, requires_grad=True)
compiled(x).sum().backward()
print(gradc.bits.same_bits(x.grad, torch.ones(3).cos()), dict(gradc.counters["fallbacks"]), dict(gradc.counters["stats"]))
"""
# As if Dynamo had its rule for addcdiv elsewhere, where nothing of gradc's replaces it.
ANOTHER_DYNAMO = """
from gradc.torch_private.dynamo_patches import no_decomposition
from gradc.torch_private.patches import Patch
no_decomposition.keep_ops_whole = lambda: Patch("keep_ops_whole", "", ())
"""
TOLD = (
    f"gradc was tested with torch 2.13.0, 2.14.1, 2.15.0, and torch {RELEASE}+git1a2b3c behaves otherwise:\n"
    "  ops that Dynamo must not take apart: compiled, value 0 has not the bits of eager's"
)


def python(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return forked.python("-c", script, environment={**os.environ, **environment})


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.13.0", True),
        ("2.13.0+cpu", True),
        ("2.14.1+cu130", True),
        ("2.15.0+rocm7.1", True),
        ("2.13.0+git1a2b3c", False),
        ("2.13.0a0+git1a2b3c", False),
        ("2.13.1+cpu", False),
        ("2.14.0", False),
        ("2.16.0.dev20261101+cpu", False),
    ],
)
def test_which_torch_is_looked_at(version: str, expected: bool) -> None:
    assert is_tested(version) is expected


def test_this_torch_behaves_as_expected_and_nothing_is_counted() -> None:
    before = {group: dict(names) for group, names in gradc.counters.items()}
    assert probe.what_is_otherwise(Backend(CompileOptions(fullgraph=True))) == ""
    assert {group: dict(names) for group, names in gradc.counters.items()} == before


def test_the_probes_are_compiled_and_captured(nothing_captured: None) -> None:
    """If Dynamo skipped them, or nothing was captured, they would be compared with themselves."""
    torch.compiler.reset()
    assert probe._lines(Backend(CompileOptions(fullgraph=True))) == []
    assert gradc.counters["stats"]["unique_graphs"] == 2 * len(PROBES)
    assert gradc.counters["compiled_autograd"]["captures"] == len(PROBES)


def test_what_comes_out_otherwise_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def changes(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x * len(calls)

    def raises(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        raise KeyError("not there")

    monkeypatch.setattr(probe, "PROBES", {"numbers": changes, "errors": raises})
    run = probe._run
    monkeypatch.setattr(probe, "_run", lambda program: calls.append(1) or run(program))
    said = "  numbers: compiled, value 0 has not the bits of eager's\n  errors: KeyError: 'not there'"
    assert probe.what_is_otherwise(Backend(CompileOptions(fullgraph=True))) == said


def test_a_torch_of_ones_own_that_behaves_is_used_untold() -> None:
    done = python(OWN_BUILD + COMPILE)
    assert done.stdout == "True {} {'unique_graphs': 1}\n" and "gradc" not in done.stderr


def test_a_torch_that_behaves_otherwise_is_refused_each_time_and_left_as_it_was() -> None:
    script = """
for _ in range(2):
    try: gradc.compile(torch.sin)
    except gradc.errors.VersionError as error: print(error)
print([patch.name for patch in gradc.patches() if patch.changes and patch.is_applied])
"""
    expected = (
        f"{TOLD}\n"
        "  What differs here may differ in your program.\n"
        "  Install one of these, say: pip install torch==2.13.0\n"
        "  GRADC_ALLOW_TORCH=1 in the environment lets it try: results may then differ from eager's.\n"
    )
    assert python(f"{OWN_BUILD}{ANOTHER_DYNAMO}import gradc\n{script}").stdout == f"{expected * 2}['log_names']\n"


def test_a_torch_that_behaves_otherwise_is_tried_on_demand() -> None:
    done = python(OWN_BUILD + ANOTHER_DYNAMO + COMPILE, GRADC_ALLOW_TORCH="1")
    assert done.stdout == "True {} {'unique_graphs': 1}\n"
    assert done.stderr.count(f"{TOLD} GRADC_ALLOW_TORCH=1: it is tried all the same, unless a name is missing.\n") == 1


def test_a_release_that_was_tested_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(begin, "_look_at_torch", lambda backend: pytest.fail("looked at"))
    monkeypatch.setattr(begin.version, "is_tested", lambda: True)
    gradc.compile(torch.sin)
