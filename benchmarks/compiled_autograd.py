"""The live backward, captured: 64 small layers, one layer, a transformer layer and a small GPT, after an eager forward.

    python -m benchmarks.compiled_autograd [--upstream] [--only NAME]

Only ``loss.backward()`` is timed. Contenders take turns, so that a slow minute hits all; ratios are medians over rounds.
``--upstream`` adds torch's compiled autograd with Inductor, its caches cold; it takes minutes to compile.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from torch import nn

import gradc
from benchmarks.models import GPT
from gradc import compiled_autograd, native

BLOCK = 10  # steps of one contender in a row: a training loop does not change its engine at each step
Backward = Callable[[torch.Tensor], None]


def mlp() -> tuple[nn.Module, torch.Tensor]:
    layers = [layer for _ in range(64) for layer in (nn.Linear(32, 32), nn.Tanh())]
    return nn.Sequential(*layers), torch.randn(8, 32)


def linear_tanh() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(32, 32), nn.Tanh()), torch.randn(8, 32)


def transformer_layer() -> tuple[nn.Module, torch.Tensor]:
    return nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True), torch.randn(4, 128, 256)


def gpt() -> tuple[nn.Module, torch.Tensor]:
    return GPT(), torch.randint(256, (4, 64))


ROUNDS = {mlp: 30, linear_tanh: 200, transformer_layer: 5, gpt: 5}


def eager(loss: torch.Tensor) -> None:
    loss.backward()


def captured(loss: torch.Tensor) -> None:
    with compiled_autograd.enable():
        loss.backward()


def upstream(loss: torch.Tensor) -> None:
    with torch._dynamo.compiled_autograd._enable(torch.compile):
        loss.backward()


def seconds(model: nn.Module, x: torch.Tensor, backward: Backward) -> float:
    loss = model(x).square().mean()
    model.zero_grad()
    start = time.perf_counter()
    backward(loss)
    return time.perf_counter() - start


def race(model: nn.Module, x: torch.Tensor, contenders: dict[str, Backward], rounds: int) -> None:
    firsts = {name: seconds(model, x, backward) for name, backward in contenders.items()}
    for backward in contenders.values():
        seconds(model, x, backward)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, backward in contenders.items():
            times[name].append(statistics.median(seconds(model, x, backward) for _ in range(BLOCK)))
    for name, own in times.items():
        ratio = statistics.median(b / a for a, b in zip(times["eager"], own))
        median = statistics.median(own) * 1e6
        print(f"  {name:10} {median:9.0f} us   {ratio:5.2f} of eager   first call {firsts[name] * 1e3:8.1f} ms", flush=True)


def look_up(model: nn.Module, x: torch.Tensor, rounds: int = 200) -> float:
    """Median seconds of the walk of the graph and the search for its recording, which a hit adds to the replay."""
    extension = native.extension
    times = []
    for _ in range(rounds):
        loss = model(x).square().mean()
        model.zero_grad()
        grad = torch.ones_like(loss)
        start = time.perf_counter()
        walk = extension.Walk((loss,), (grad,), False, (), True)
        compiled_autograd.recordings().find(walk)
        times.append(time.perf_counter() - start)
        del walk  # and with it the graph: freeing it is no part of the next look-up
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--upstream", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    torch.set_num_threads(1)
    contenders = {"eager": eager, "gradc": captured}
    if options.upstream:
        contenders["upstream"] = upstream
    for make, rounds in ROUNDS.items():
        if options.only not in make.__name__:
            continue
        print(make.__name__)
        model, x = make()
        with tempfile.TemporaryDirectory() as empty:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = empty
            race(model, x, contenders, rounds)
        print(f"  look-up    {look_up(model, x) * 1e6:9.0f} us")
    print(dict(gradc.counters["compiled_autograd"]), dict(gradc.counters["fallbacks"]))


if __name__ == "__main__":
    main()
