"""Sweep torch's own test material against eager.

    python -m tests.sweep ops --compiler gradc --dtype float32 --order 1 --jobs 2
    python -m tests.sweep errors       what torch refuses; to the terminal alone
    python -m tests.sweep all          every suite that docs/sweep.md shows, under gradc and aot_eager, or under --compiler
    python -m tests.sweep table        write docs/sweep.md from the results in docs/sweep/

Each job is a process that writes one line for each op, so that a crash costs one op.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

from tests.sweep import table, worker

DTYPES = ("float32", "float64", "bfloat16", "complex64")


def main() -> int:
    options = _parse()
    if options.suite == "table":
        table.write()
        return 0
    if options.worker:
        worker.work(options, pathlib.Path(options.worker))
        return 0
    bad = 0
    for run in _runs(options):
        bad += _sweep(run)
    table.write()
    return 1 if bad else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("suite", choices=[*worker.ALL_SUITES, "all", "table"])
    parser.add_argument("--compiler", "--backend", help="gradc, if not said")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--order", type=int, default=1, choices=(1, 2))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=2, help="samples of each op")
    parser.add_argument("--only", default="", help="only names that contain this; prints every verdict, writes none")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th op, from the i-th")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def _runs(options: argparse.Namespace) -> list[argparse.Namespace]:
    compilers = [options.compiler] if options.compiler else ["gradc", "aot_eager"]
    if options.suite != "all":
        return [argparse.Namespace(**{**vars(options), "compiler": compilers[0]})]
    runs = []
    for compiler in compilers:
        for suite, dtype, order in table.SHOWN:
            changes = {"suite": suite, "dtype": dtype, "order": order, "compiler": compiler}
            runs.append(argparse.Namespace(**{**vars(options), **changes}))
    return runs


def _sweep(options: argparse.Namespace) -> int:
    """Run one suite in ``options.jobs`` processes. Returns the number of mismatches, errors, crashes and timeouts."""
    started = time.time()
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder) / f"{number}.jsonl" for number in range(options.jobs)]
        processes = [_start(options, number, file) for number, file in enumerate(files)]
        while any(process.poll() is None for process in processes):
            time.sleep(0.5)
            for number, process in enumerate(processes):
                if process.poll() not in (None, 0) and worker.record_crash(options.suite, files[number]):
                    processes[number] = _start(options, number, files[number])
        verdicts = [verdict for file in files for verdict in worker.read(file)]
    result = table.Result.of(options, verdicts, time.time() - started)
    print(result)
    if options.suite == "errors" or options.only or options.shard != "0/1":
        verdicts = verdicts if options.only else [verdict for verdict in verdicts if verdict["status"] in table.BAD]
        print("\n".join(json.dumps(verdict) for verdict in sorted(verdicts, key=lambda v: v["name"])))
    else:
        result.save()
    return result.num_bad


def _start(options: argparse.Namespace, number: int, file: pathlib.Path) -> subprocess.Popen[bytes]:
    index, total = (int(part) for part in options.shard.split("/"))
    shard = f"{index + total * number}/{total * options.jobs}"
    command = [sys.executable, "-m", "tests.sweep", options.suite, "--worker", str(file), "--shard", shard]
    for name in ("compiler", "dtype", "order", "samples", "only"):
        command += [f"--{name}", str(getattr(options, name))]
    return subprocess.Popen(command)


if __name__ == "__main__":
    sys.exit(main())
