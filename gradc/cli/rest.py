"""``gradc demo``, ``gradc env`` and ``gradc bench``. What they run is imported where it is run: each needs other things."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from gradc.errors import ConfigError

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
DEFAULT_BENCHMARK = "steps"
_HELPERS = ("__init__", "common", "endurance", "models", "results", "runs")


def demo(options: argparse.Namespace) -> int:
    from gradc.demo.main import run

    run(options.epochs, tuple(options.backend or ()), options.out)
    return 0


def env(options: argparse.Namespace) -> int:
    from gradc import environment

    print(environment.describe())
    return 0


def bench(options: argparse.Namespace) -> int:
    names = sorted(path.stem for path in BENCHMARKS.glob("*.py") if path.stem not in _HELPERS)
    if not names:
        raise ConfigError(
            f"gradc bench: the benchmarks are not part of the installed package, and there is no folder {BENCHMARKS}."
            "\n  Run it in a checkout that was installed with: pip install --no-build-isolation -e ."
        )
    is_named = options.words and not options.words[0].startswith("-")
    name, *rest = options.words if is_named else [DEFAULT_BENCHMARK, *options.words]
    if name == "list":
        print("\n".join(f"gradc bench {name}" for name in names))
        return 0
    if name not in names:
        raise ConfigError(f"gradc bench {name}: there is no such benchmark. There are: {', '.join(names)}.")
    sys.path.insert(0, str(BENCHMARKS.parent))
    sys.argv = [f"gradc bench {name}", *rest]
    runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    return 0
