"""Where something of an installation is missing or wrong, gradc says so, or does without: each in a process of its own.

A wrong torch is in tests/torch_private/test_patches.py, a build without a compiler or without torch in tests/test_packaging.py.
"""

from __future__ import annotations

import getpass
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest
import torch

import gradc
from gradc import native

RELEASE = torch.__version__.split("+")[0]
OTHER_RELEASE = RELEASE[:-1] + "9"
CURE = (
    "  Install gradc again, in its checkout, which compiles it for this one:"
    " pip install --no-build-isolation --no-cache-dir --force-reinstall --no-deps .\n"
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


def test_inductors_folder_of_another_user_is_not_used(tmp_path: pathlib.Path) -> None:
    """Where all may write, any user could have put code there for this one to run."""
    (folder := tmp_path / f"torchinductor_{getpass.getuser()}").mkdir()
    folder.chmod(0o777)
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    command = [sys.executable, "-c", TRAIN, "inductor"]
    environment |= {"TMPDIR": str(tmp_path), "GRADC_LOGS": "fallbacks"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout == "True {'program that Inductor cannot compile': 2}\n", done.stderr
    assert f"another user could have put code into Inductor's folder {folder}" in done.stderr
    assert [path for path in folder.rglob("*") if path.is_file()] == []


TRAIN_CLOSELY = """
import gradc, hashlib, torch
from torch._dynamo.utils import counters

torch.manual_seed(0)
model, x = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)), torch.randn(4, 8)

def grads(model):
    return torch.autograd.grad(model(x).square().mean(), list(parameters))

parameters = tuple(model.parameters())
ours = grads(gradc.compile(model, backend="inductor"))
for mine, eager in zip(ours, grads(model), strict=True):
    torch.testing.assert_close(mine, eager)
bits = hashlib.sha256(b"".join(grad.numpy().tobytes() for grad in ours)).hexdigest()
print(bits, counters["inductor"]["fxgraph_cache_hit"], gradc.counters["fallbacks"].total())
"""


def processes(number: int, folder: pathlib.Path) -> list[list[str]]:
    """What each of ``number`` processes prints that compile the same at once and share Inductor's folder.

    A process whose gradients are not near eager's ends with an error.
    """
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", TRAIN_CLOSELY]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for _ in range(number)
    ]
    printed = [process.communicate() for process in running]
    assert [process.returncode for process in running] == [0] * number, printed
    return [out.split() for out, _ in printed]


def test_a_second_process_finds_inductors_code_on_disk_and_corrupted_files_do_no_harm(
    tmp_path: pathlib.Path, of_the_day: Any
) -> None:
    """Inductor makes what is corrupted anew; or it raises, as of torch 2.15, and eager's kernels serve, counted."""
    at_once = len(of_the_day(range(9), 3))
    first = processes(at_once, tmp_path)
    assert {(bits, fallbacks) for bits, _, fallbacks in first} == {(first[0][0], "0")}
    assert processes(1, tmp_path) == [[first[0][0], "2", "0"]]  # forward and backward, with the same bits

    for path in filter(pathlib.Path.is_file, tmp_path.rglob("*")):
        path.write_text("corrupted")
    assert {fallbacks for _, _, fallbacks in processes(at_once, tmp_path)} <= {"0", "2"}
