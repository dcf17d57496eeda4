"""What the runs that time steps have in common: their arguments, and what they store and write.

    add_only, add_arguments: parser -> its arguments        run: (command, table, options, measure) -> files, a page, plots

A model's results are stored as soon as it is done: an interrupted run loses nothing that is finished.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks import headline, report, results
from benchmarks.models import MODELS
from benchmarks.report import Table
from benchmarks.results import DOCS, R
from gradc import text_table


def add_arguments(
    parser: argparse.ArgumentParser, default: Iterable[str] = MODELS, models: Iterable[str] = MODELS, seconds: float = 4.0
) -> None:
    add_only(parser, default, models)
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=seconds, help="of timing for each model; default: %(default)s")
    parser.add_argument("--resume", action="store_true", help="leave out the models that have results already")
    parser.add_argument("--out", default="bench-out", metavar="FOLDER", help="default: %(default)s; docs: the pages of gradc")


def add_only(
    parser: argparse.ArgumentParser, default: Iterable[str] = MODELS, models: Iterable[str] = MODELS
) -> None:
    """``--only``: those of ``models`` that are meant."""
    names = list(models)
    parser.add_argument(
        "--only",
        type=lambda text: matching_models(text, names),
        default=list(default),
        metavar="NAME,...",
        help=f"parts of names, separated by commas, of: {'; '.join(names)}. Default: {'; '.join(default)}",
    )


def matching_models(text: str, models: Iterable[str] = MODELS) -> list[str]:
    """``"mlp,vit" -> ["64-layer MLP", "ViT-S/16"]``"""
    parts = [part.strip().lower() for part in text.split(",")]
    for part in parts:
        if not part or not any(part in model.lower() for model in models):
            raise argparse.ArgumentTypeError(f"no model's name contains {part!r}. There are: {', '.join(models)}")
    return [model for model in models if any(part in model.lower() for part in parts)]


def run(command: str, kind: Table[R], options: argparse.Namespace, measure: Callable[[str], list[R]]) -> None:
    """Measure the models asked for, and write the page of all that is stored; the README's part, too, if it is that of docs."""
    folder = Path(options.out)
    store = folder / "benchmarks" / f"{kind.store}-{options.threads}.json"
    entries = results.load(store, kind.result)
    for model in options.only:
        if options.resume and model in entries:
            continue
        start = time.perf_counter()
        found = measure(model)
        entries[model] = results.entry(command, time.perf_counter() - start, found)
        results.save(entries, store)
        print(text_table.table(kind.headers, kind.rows(model, entries[model])) + "\n", flush=True)
    report.write(folder)
    if folder.resolve() == DOCS.resolve():
        headline.write()
    print(f"Table: {folder / 'benchmarks.md'}   plot: {folder / kind.plot}   figures: {store}")
