"""What timing and comparing steps asks of the device that they run on.

    find: name -> Device        Device: placed, synchronize, memory, peak, forget, capture

A device that is no GPU does its work before a call returns, and has no allocator to ask and no graphs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

Step = Callable[[], Any]
STEPS_BEFORE_CAPTURE = 3
DETERMINISTIC_CUBLAS = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read once in a process, at the first product


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes: those of tensors, and those that the allocator took for them, and for graphs."""

    allocated: int = 0
    reserved: int = 0

    def __sub__(self, other: Memory) -> Memory:
        return Memory(self.allocated - other.allocated, self.reserved - other.reserved)


@dataclasses.dataclass(frozen=True)
class Device:
    """See the module's docstring. ``name`` is torch's: cpu, or that of a device of PrivateUse1."""

    name: str
    has_graphs = False

    def placed(self) -> contextlib.AbstractContextManager[Any]:
        """Inside, tensors are made there."""
        return torch.device(self.name)

    def synchronize(self) -> None:
        """Wait until all that was asked of it is done."""

    def memory(self) -> Memory:
        """What is held now."""
        return Memory()

    def peak(self) -> Memory:
        """The most that was held since ``forget``."""
        return Memory()

    def forget(self) -> None:
        """Give back what nobody holds, and the peak."""
        gc.collect()

    def capture(self, step: Step) -> Step:
        """The whole step as one graph, by hand: what no compiler can be faster than without other kernels.

        The first ``STEPS_BEFORE_CAPTURE`` steps run as they are, then one is captured; a call is a replay.
        """
        raise NotImplementedError(f"{self.name} has no graphs")

    def generators(self) -> list[torch.Tensor]:
        """The states of all generators whose draws a step may take."""
        return [torch.get_rng_state()]


@dataclasses.dataclass(frozen=True)
class Cuda(Device):
    has_graphs = True

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def memory(self) -> Memory:
        return Memory(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())

    def peak(self) -> Memory:
        return Memory(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())

    def forget(self) -> None:
        if trees := sys.modules.get("torch._inductor.cudagraph_trees"):
            trees.reset_cudagraph_trees()  # or they keep the pool of mode="reduce-overhead"
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def capture(self, step: Step) -> Step:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(STEPS_BEFORE_CAPTURE):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = step()

        def replay() -> Any:
            graph.replay()
            return result

        replay.step = step  # type: ignore[attr-defined]  # it holds the tensors that the graph reads; the graph does not
        return replay

    def generators(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), torch.cuda.get_rng_state()]


def find(name: str) -> Device:
    """
    Raises:
        SystemExit: where it is asked for CUDA and torch sees no GPU.
    """
    kind = name.partition(":")[0]
    if kind != "cuda":
        return Device(name)
    os.environ.setdefault(*DETERMINISTIC_CUBLAS)
    if not torch.cuda.is_available():
        raise SystemExit(f"There is no GPU that torch {torch.__version__} can use.")
    return Cuda(name)


@contextlib.contextmanager
def deterministic(warn_only: bool = False) -> Iterator[None]:
    """Inside, torch takes kernels that repeat their bits, or refuses."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
