"""Where something of an installation is missing or wrong, gradc says so, or does without: each in a process of its own.

A wrong torch is in tests/torch_private/test_patches.py, a build without a compiler or without torch in tests/test_packaging.py.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import torch

import gradc
from gradc import native

RELEASE = torch.__version__.split("+")[0]
OTHER_RELEASE = RELEASE[:-1] + "9"
CURE = (
    "  Install gradc again, which compiles it for this one:"
    " pip install --no-build-isolation --no-cache-dir --force-reinstall --no-deps gradc\n"
    "  or install the wheel that is for this torch: docs/torch-versions.md\n"
)
FOR_ANOTHER = f"gradc's extension was compiled for torch {OTHER_RELEASE}, but torch {RELEASE} is imported.\n{CURE}"
TRAIN = """
import gradc, sys, torch
from gradc.bits import same_bits

def grads(compile, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    compile(model, **options)(torch.randn(4, 8)).square().mean().backward()
    return [parameter.grad for parameter in model.parameters()]

are_same = all(map(same_bits, grads(lambda model: model), grads(gradc.compile, backend=sys.argv[1])))
print(are_same, dict(gradc.counters["fallbacks"]))
"""


def python(*words: str, at: pathlib.Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process that imports the gradc of the folder ``at``."""
    command, variables = [sys.executable, *words], {**os.environ, **environment}
    return subprocess.run(command, cwd=at, capture_output=True, text=True, env=variables)


@pytest.fixture
def foreign(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of gradc with the binary of another torch: this one's, with another version written into it."""
    return with_binary(tmp_path, RELEASE.encode(), OTHER_RELEASE.encode())


def with_binary(folder: pathlib.Path, old: bytes, new: bytes) -> pathlib.Path:
    package, binary = pathlib.Path(gradc.__file__).parent, pathlib.Path(native.extension.__file__)
    shutil.copytree(package, folder / "gradc", ignore=shutil.ignore_patterns("__pycache__", "csrc", "*.so"))
    held = binary.read_bytes()
    assert old in held and len(old) == len(new)
    (folder / "gradc" / binary.name).write_bytes(held.replace(old, new))
    return folder


WAYS = """
import gradc, torch

def refused(begin, *arguments, **options):
    try:
        begin(*arguments, **options)
    except gradc.errors.VersionError as error:
        print(error)

refused(gradc.compile, torch.sin)
refused(lambda: torch.compile(torch.sin, backend="gradc")(torch.ones(2)))
refused(gradc.compiled_autograd.enable)
refused(gradc.compile, torch.optim.SGD([torch.ones(2, requires_grad=True)]))
print([patch.name for patch in gradc.patches() if patch.is_applied])
"""


def test_a_foreign_binary_is_refused_where_compiling_begins_and_nothing_of_torch_is_changed(foreign: pathlib.Path) -> None:
    assert python("-c", WAYS, at=foreign).stdout == f"{FOR_ANOTHER * 4}['log_names']\n"


def test_a_foreign_binary_is_named_by_env(foreign: pathlib.Path) -> None:
    done = python("-m", "gradc.cli", "env", at=foreign)
    assert f"none: {FOR_ANOTHER}" in done.stdout and done.returncode == 0


def test_a_binary_that_asks_for_what_torch_has_not_is_refused(tmp_path: pathlib.Path) -> None:
    """Every symbol is looked for when it is loaded: it cannot crash later."""
    foreign = with_binary(tmp_path, b"\0_ZN3c1010Dispatcher13realSingletonEv\0", b"\0_ZN3c1010Dispatcher13sealRingletonEv\0")
    done = python("-c", "import gradc, torch; gradc.compile(torch.sin)", at=foreign)
    assert f"extension does not load with torch {torch.__version__}: it was probably compiled for another.\n" in done.stderr
    assert f"undefined symbol: _ZN3c1010Dispatcher13sealRingletonEv\n{CURE}" in done.stderr and done.returncode == 1


NOTHING_SAID, INDUCTOR_SAYS = "", "InvalidCxxCompiler: No working C++ compiler found"


@pytest.mark.parametrize(
    ("backend", "fallbacks", "said"),
    [("replay", "{}", NOTHING_SAID), ("inductor", "{'program that Inductor cannot compile': 2}", INDUCTOR_SAYS)],
)
def test_without_a_compiler_or_a_home_to_write_to(backend: str, fallbacks: str, said: str, tmp_path: pathlib.Path) -> None:
    """Nothing is compiled at run time but by Inductor, for which eager's kernels serve, counted."""
    nowhere = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR"), "/proc/nowhere")
    compilers = {"PATH": str(tmp_path), "CXX": "no-such-compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "empty")}
    done = python("-c", TRAIN, backend, GRADC_LOGS="fallbacks", **nowhere, **compilers)
    assert done.stdout == f"True {fallbacks}\n", done.stderr
    assert said in done.stderr and bool(said) == bool(done.stderr)
