"""What the time of a library's settled training step goes into: Python, guards, gradc, autograd, dispatch, kernels.

    python -m benchmarks.parts [CASE ...] [--ways eager,compiled,chosen] [--seconds 8]

The cases are those of tests/world/cases (their libraries, and py-spy, have to be installed). Each way is a process of its own,
one thread. *compiled*: the whole step, compiled without budget and trial; *chosen*: as gradc runs it unasked, whatever it has
chosen. py-spy looks 200 times a second where the process is, in C++ too. A look counts for the innermost frame that is of
one of the parts: memory that ATen asks for is dispatch, and a Python function that torch calls is Python.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

import gradc
from gradc.text_table import table

CASES = ("torchrl_ppo", "sb3_sac", "e3nn_forces", "gpytorch_svgp", "pyg_gat", "pyg_schnet_forces", "trainer_float32")
WAYS = ("eager", "compiled", "chosen")
_READY = "ready"
_RATE = 200  # looks a second

# The first that fits a frame has it.
PARTS = {
    part: re.compile(pattern)
    for part, pattern in {
        "guards": r"torch::dynamo|dynamo_|get_extra_state|eval_frame|Guard|\(torch/_dynamo/",
        "gradc": r"^gradc::|\(gradc/",
        "kernels": r"at::native|at::meta|TensorIterator|mkl_|sgemm|dnnl|oneapi",
        "autograd": r"torch::autograd::|\(torch/autograd/",
        "dispatch": r"^(at|c10)::|\(libtorch|\(libc10",
        "collector": r"^gc_|gc_collect",
        "Python": r"\.py:\d+\)",
    }.items()
}


def train(case: str, way: str, seconds: float) -> None:
    """In this process: settles, says so, and goes on until it has computed so long. The last line is a step's milliseconds."""
    from tests.world.harness.run import train as begin
    from tests.world.harness.settling import settle
    from tests.world.harness.torchvision_ops import declare_missing_ops
    from tests.world.harness.training import EAGERLY
    from tests.world.harness.training import WAYS as WORLDS

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    declare_missing_ops()
    if way == "compiled":
        gradc.config.compile_seconds, gradc.config.compare_with_eager = None, False
    compiled = EAGERLY if way == "eager" else WORLDS["step"]
    training = begin(importlib.import_module(f"tests.world.cases.{case}").make, compiled).training
    assert training is not None, "does not train"
    settle(training.step, 0)
    print(_READY, flush=True)
    begun, number = time.thread_time(), 0
    while time.thread_time() - begun < seconds:
        for _ in range(10):
            training.step()
        number += 10
    print(1e3 * (time.thread_time() - begun) / number)


def looked_at(case: str, way: str, seconds: float) -> list[str]:
    """A row of the table."""
    command = [sys.executable, "-m", "benchmarks.parts", case, "--child", way, "--seconds", str(seconds + 4)]
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        if not any(line.strip() == _READY for line in lines):
            return [case, way, "raises"]
        raw = Path(folder) / "looks"
        looks = ["py-spy", "record", "--native", "--format", "raw", "--rate", str(_RATE), "--duration", str(int(seconds))]
        subprocess.run([*looks, "--output", str(raw), "--pid", str(process.pid)], check=True, capture_output=True)
        found = parts_of(raw.read_text())
        milliseconds = float(list(lines)[-1])
    total = sum(found.values())
    return [case, way, f"{milliseconds:.2f}", *(f"{100 * found[part] / total:.0f} %" for part in PARTS)]


def parts_of(looks: str) -> collections.Counter[str]:
    """How many of the looks were at each part. ``looks``: lines of frames, the outermost first, and how often."""
    found = collections.Counter[str]()
    for line in looks.splitlines():
        stack, number = line.rsplit(" ", 1)
        found[part_of(stack.split(";"))] += int(number)
    return found


def part_of(stack: list[str]) -> str:
    for frame in reversed(stack):
        for part, pattern in PARTS.items():
            if pattern.search(frame):
                return part
    return "Python"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=CASES)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return train(given.cases[0], given.child, given.seconds)
    if shutil.which("py-spy") is None:
        parser.error("py-spy is not installed: pip install py-spy")
    rows = [looked_at(case, way, given.seconds) for case in given.cases for way in given.ways.split(",")]
    print(table(["case", "way", "ms", *PARTS], rows))


if __name__ == "__main__":
    main()
