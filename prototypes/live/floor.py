"""What bounds any live way: eager; Python alone, every op answered; kernels alone, the step's calls as one Program.

python -m prototypes.live.floor [PROGRAM ...]
"""

from __future__ import annotations

import functools
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.cpp_extension import load

import gradc
from gradc.backends import lookup_backend
from gradc.ir.recorder import Recorder
from gradc.ir.values import Ref
from gradc.passes import pipeline
from prototypes.live import programs

PROGRAMS = programs.PROGRAMS | {"trainer": functools.partial(programs.trainer, log_every=10**9)}
OFF, RECORD, ANSWER = range(3)
NUM_UPDATES = {"sb3_ppo": 4}


class Answering:
    """Autograd's entries as the key has ops: run and kept, or answered with what was kept."""

    def __init__(self, extension: Any) -> None:
        self.extension, self.mode, self.kept, self.place = extension, OFF, list[Any](), 0
        self.leaves = list[tuple[torch.Tensor, torch.Tensor]]()
        self.real = torch.autograd.backward, torch.autograd.grad
        torch.autograd.backward, torch.autograd.grad = (functools.partial(self.call, real) for real in self.real)

    def switch(self, mode: int) -> None:
        self.mode, self.place = mode, 0
        if mode == RECORD:
            self.kept.clear()
        self.extension.set(mode)

    def call(self, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.mode == ANSWER:
            if real is self.real[0]:
                for leaf, gradient in self.leaves:
                    leaf.grad = gradient
            self.place += 1
            return self.kept[self.place - 1]
        if self.mode == RECORD:
            torch._C._dispatch_tls_set_dispatch_key_included("TESTING_ONLY_GenericMode", False)
        result = real(*args, **kwargs)
        if self.mode == RECORD:
            torch._C._dispatch_tls_set_dispatch_key_included("TESTING_ONLY_GenericMode", True)
            self.kept.append(result)
        return result


def least(function: Callable[[], Any], number: int = 60) -> float:
    times = []
    for _ in range(number):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def made(name: str) -> tuple[programs.Training, list[torch.Tensor], torch.optim.Optimizer]:
    torch.manual_seed(0)
    training = PROGRAMS[name](1)
    modules = [seen for seen in training.seen if isinstance(seen, torch.nn.Module)]
    (optimizer,) = (seen for seen in training.seen if isinstance(seen, torch.optim.Optimizer))
    for _ in range(5):
        training.step()
    return training, [p for module in modules for p in module.parameters()], optimizer


def python_alone(name: str, answering: Answering) -> tuple[float, int]:
    training, parameters, optimizer = made(name)
    optimizer.step = lambda *args, **kwargs: None
    answering.leaves = [(p, torch.zeros_like(p)) for p in parameters]
    answering.switch(RECORD)
    training.step()
    number = answering.extension.size()
    answering.switch(OFF)

    def step() -> None:
        answering.switch(ANSWER)
        training.step()
        answering.switch(OFF)

    return least(step), number


def kernels_alone(name: str) -> tuple[float, int]:
    training, parameters, optimizer = made(name)
    optimizer.step = lambda *args, **kwargs: None
    recorder = Recorder("step", lift=lambda tensor: recorder.add_constant(tensor))
    with recorder:
        training.step()
    program = recorder.program([p.grad for p in parameters if p.grad is not None and recorder.slot_of(p.grad) is not None])
    program = pipeline.run(pipeline.joined([out.slot for out in program.outputs if isinstance(out, Ref)]), program)
    run = lookup_backend("replay")(program)
    run([])
    return least(lambda: run([])), len(program.instructions)


def updates_alone(name: str) -> tuple[float, float]:
    _, parameters, optimizer = made(name)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    eager = least(optimizer.step)
    gradc.compile(optimizer)
    optimizer.step()
    return eager * NUM_UPDATES.get(name, 1), least(optimizer.step) * NUM_UPDATES.get(name, 1)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    source = os.path.join(os.path.dirname(__file__), "floor.cpp")
    answering = Answering(load("floor_ext", [source], extra_cflags=["-O2"]))
    for name in sys.argv[1:] or PROGRAMS:
        eager = least(made(name)[0].step)
        (python, ops), (kernels, calls), (by_torch, native) = (
            python_alone(name, answering),
            kernels_alone(name),
            updates_alone(name),
        )
        print(f"{name:13s} eager {eager:.2f}  {ops} ops, python {python:.2f}  {calls} calls, kernels {kernels:.2f}", end="  ")
        print(f"update {by_torch:.2f}, native {native:.3f}  bound {eager / (python + kernels + native):.1f}", flush=True)


if __name__ == "__main__":
    main()
