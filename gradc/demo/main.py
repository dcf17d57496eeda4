"""The demo's table of contents: check the arguments, train each run, show them.

run: (epochs, backends, out) -> list of Run, a printed table, and demo.png in the folder out
"""

from __future__ import annotations

import importlib.util
import logging
import math
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from gradc import environment
from gradc.demo.limits import BACKENDS, MOST_EPOCHS_BY_DEFAULT, check_limits
from gradc.demo.show import render_table, save_plot
from gradc.demo.train import Compile, Run, num_steps, seconds_per_step, train
from gradc.demo.vit import Digits, load_digits
from gradc.errors import ConfigError, GradcError
from gradc.frontend.api import compile

LABELS = {"eager": "eager", "aot_eager": "torch.compile aot_eager", "inductor": "torch.compile", "gradc": "gradc"}
TRAINING_SECONDS = 70  # of all runs together, by default; compiling comes on top, mostly Inductor's
LIMIT_SECONDS = 160  # of the whole demo, by default; Inductor is left out where it would take longer
INDUCTOR_TIMES = 8  # as long as aot_eager does Inductor take to compile the step: 37 s and 4.7 s, 40 s and 4.8 s
PURPOSE = (
    "gradc compiles PyTorch training and keeps eager's gradients, bit for bit. torch.compile decides when the forward runs\n"
    "under which autocast backward will run: where that is not so, its gradients differ, silently. Here both compile the\n"
    "whole training step of one model: forward, backward and the optimizer."
)
NUM_THREADS = 1  # a model this small gains little from a second one, and a busy machine would make it wait for both


def run(epochs: int | None = None, backends: tuple[str, ...] = (), out: str = "demo-out") -> list[Run]:
    """Train with each of ``backends`` (eager always, as the reference), print the table, and save the plot.

    ``epochs`` None: MOST_EPOCHS_BY_DEFAULT, or what this machine does in about TRAINING_SECONDS. No ``backends``: all of
    BACKENDS, but for Inductor where compiling would take longer than LIMIT_SECONDS.

    Raises:
        ConfigError: for a number of epochs, a backend or a folder that cannot be used; before anything is trained.
        GradcError: if scikit-learn or matplotlib is missing.
    """
    start = time.perf_counter()
    check_arguments(epochs, backends)
    folder = writable_folder(out)
    digits = load_digits()
    torch.set_num_threads(NUM_THREADS)
    print(PURPOSE)
    print(f"This CPU has {'' if environment.has_bf16() else 'no '}instructions for bfloat16.")
    epochs = epochs or fitting_epochs(digits, len({"eager", *(backends or BACKENDS)}))
    print(
        f"A vision transformer on {len(digits.train_labels)} digits, bf16 autocast with a float32 loss head, "
        f"{epochs} epochs, one thread.",
        flush=True,
    )
    reference = _train("eager", lambda step: step, digits, epochs, None)
    runs = [reference]
    for backend in (name for name in BACKENDS[1:] if name in (backends or BACKENDS)):
        limit = LIMIT_SECONDS - (time.perf_counter() - start) if not backends else math.inf
        if reason := why_left_out(backend, runs, limit):
            print(f"{LABELS[backend]}: left out, since {reason}")
            continue
        torch._dynamo.reset()
        runs.append(_train(backend, compiler(backend), digits, epochs, reference))
    print(f"\n{render_table(runs)}\n")
    save_plot(runs, folder / "demo.png")
    print(f"Plot: {folder / 'demo.png'}")
    return runs


def _train(backend: str, compile: Compile, digits: Digits, epochs: int, reference: Run | None) -> Run:
    """Says how long it took, where no progress bar does."""
    start = time.perf_counter()
    run = train(LABELS[backend], compile, digits, epochs, reference)
    if not sys.stderr.isatty():
        print(f"{run.name}: {time.perf_counter() - start:.0f} s", flush=True)
    return run


def fitting_epochs(digits: Digits, num_runs: int) -> int:
    """How many epochs all runs together can train in about TRAINING_SECONDS, by the time of a few eager steps."""
    seconds = seconds_per_step(digits)
    epochs = int(TRAINING_SECONDS / (num_runs * num_steps(digits, 1) * seconds))
    if epochs >= MOST_EPOCHS_BY_DEFAULT:
        return MOST_EPOCHS_BY_DEFAULT
    epochs = max(1, epochs)
    print(f"Shortened to {epochs} of {MOST_EPOCHS_BY_DEFAULT} epochs: a step takes {seconds:.2f} s here. --epochs N for more.")
    return epochs


def why_left_out(backend: str, runs: list[Run], limit: float) -> str:
    """Why torch.compile itself is not run, with ``limit`` seconds left, after ``runs``; "" if it is."""
    if backend != "inductor":
        return ""
    if not has_compiler():
        return "there is no C++ compiler here."
    compiling = INDUCTOR_TIMES * max(run.compile_seconds for run in runs)
    training = 2 * len(runs[0].losses) * runs[0].step_ms / 1000  # its own and gradc's
    if compiling + training > limit:
        return f"compiling would take about {compiling:.0f} s here. To see it: --backend inductor"
    return ""


def has_compiler() -> bool:
    """True if Inductor finds the C++ compiler that it works with."""
    from torch._inductor import cpp_builder  # takes a second to import

    try:
        cpp_builder.get_cpp_compiler()
    except RuntimeError:
        return False
    return True


def compiler(backend: str) -> Compile:
    """The function that compiles the training step for ``backend``. Inductor's caches are off: compile seconds are honest."""
    if backend == "gradc":
        return compile
    warnings.filterwarnings("ignore", message="dynamo_pgo force disabled")
    logging.getLogger("torch._dynamo.variables.ctx_manager").addFilter(_is_news)
    torch.compiler.config.force_disable_caches = True
    return lambda step: torch.compile(step, backend=backend)


def _is_news(record: logging.LogRecord) -> bool:
    """False for what Dynamo says of each optimizer's step."""
    return not record.getMessage().startswith("Profiler record function")


def check_arguments(epochs: int | None, backends: tuple[str, ...]) -> None:
    check_limits(epochs, backends)
    if importlib.util.find_spec("matplotlib") is None:
        raise GradcError("The demo's plot needs matplotlib, which is not installed.\n  Run: pip install matplotlib")


def writable_folder(out: str) -> Path:
    """The folder ``out``, made if need be, and tried by writing to it, so that no training is lost at the end."""
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError(
            f"--out {out}: cannot write there: {error.strerror or error}.\n  Name a folder that you may write to."
        ) from error
    return folder
