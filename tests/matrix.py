"""Run tests, fuzzers and sweeps on several versions of torch and Python, each in an environment and a copy of the tree.

    python -m tests.matrix [TORCH[@PYTHON] ...] [--stages tests fuzz sweep] [--tests PATH ...] [--programs N]

Prints a line for each stage of each version: what passed, what failed. ``2.14.1`` is with the Python that runs this,
``2.13.0@3.12`` with ``python3.12``. The copy lies in build/matrix, with the whole output of each stage beside it: the
extension is built in place, for one version of torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / "build" / "matrix"
SEED = 210000
VERSIONS = ("2.13.0", "2.14.1", "2.15.0", "2.13.0@3.12")


@dataclasses.dataclass(frozen=True)
class Place:
    """Where one version is tested, such as ``2.13.0@3.12``: its interpreter, and its copy of the tree."""

    version: str

    @property
    def torch(self) -> str:
        return self.version.partition("@")[0]

    @property
    def base(self) -> str:
        """The Python that the environment is made with.

        Raises:
            SystemExit: if there is none.
        """
        _, _, wanted = self.version.partition("@")
        if not wanted:
            return sys.executable
        return shutil.which(f"python{wanted}") or sys.exit(f"torch {self.version}: there is no python{wanted} on the PATH")

    @property
    def python(self) -> pathlib.Path:
        return FOLDER / self.version / "venv" / "bin" / "python"

    @property
    def tree(self) -> pathlib.Path:
        return FOLDER / self.version / "tree"

    def run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the interpreter with ``arguments`` in the tree, and keep what it prints as ``name``.log."""
        done = subprocess.run([str(self.python), *arguments], cwd=self.tree, capture_output=True, text=True)
        (FOLDER / self.version / f"{name}.log").write_text(done.stdout + done.stderr)
        return done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--tests", nargs="+", default=["tests"], help="folders and files of tests")
    parser.add_argument("--programs", type=int, default=2000, help="of each kind that fuzzers make; default: %(default)s")
    parser.add_argument("--jobs", type=int, default=2, help="processes; default: %(default)s")
    options = parser.parse_args()
    are_good = []
    for version in options.versions:
        prepare(place := Place(version))
        are_good += [STAGES[stage](place, options) for stage in options.stages]
    return 0 if all(are_good) else 1


def test(place: Place, options: argparse.Namespace) -> bool:
    done = place.run("tests", "-m", "pytest", "-q", "-rfE", "--tb=line", "-n", str(options.jobs), *options.tests)
    *lines, counts = done.stdout.strip().splitlines() or [done.stderr]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return tell(place, "tests", done, [counts.strip("= "), *failed])


def fuzz(place: Place, options: argparse.Namespace) -> bool:
    are_good = [_fuzz(place, options, *kind) for kind in FUZZERS]  # all of them, whatever the first finds
    return all(are_good)


def _fuzz(place: Place, options: argparse.Namespace, name: str, module: str, *flags: str) -> bool:
    numbers = ("--programs", str(options.programs), "--seed", str(SEED), "--jobs", str(options.jobs))
    done = place.run(name, "-m", module, *numbers, *flags)
    return tell(place, name, done, [line for line in done.stdout.splitlines() if line.startswith(f"seed {SEED}")])


def sweep(place: Place, options: argparse.Namespace) -> bool:
    done = place.run("sweep", "-m", "tests.sweep", "all", "--compiler", "gradc", "--jobs", str(options.jobs))
    return tell(place, "sweep", done, done.stdout.splitlines())


STAGES = {"tests": test, "fuzz": fuzz, "sweep": sweep}
FUZZERS = (
    ("fuzz", "tests.fuzz"),
    ("fuzz-captured", "tests.fuzz", "--compiler", "captured"),
    ("fuzz-python", "tests.fuzz_python"),
)


def tell(place: Place, stage: str, done: subprocess.CompletedProcess[str], lines: list[str]) -> bool:
    print(f"torch {place.version}, {stage}: {'good' if done.returncode == 0 else 'NOT GOOD'}", *lines, sep="\n  ", flush=True)
    return done.returncode == 0


def prepare(place: Place) -> None:
    """Make the environment, copy what git knows of the tree, and build the extension.

    What was built there already stays, and no file that git knew there and no longer knows here.
    """
    place.tree.mkdir(parents=True, exist_ok=True)
    for name in _listed(place.tree) - _listed(ROOT) if (place.tree / ".git").exists() else ():
        (place.tree / name).unlink(missing_ok=True)
    if not place.python.exists():
        subprocess.run([place.base, "-m", "venv", place.python.parents[1]], check=True)
    copy = f"git ls-files -z | tar --create --null --files-from=- | tar --extract --directory={place.tree}"
    subprocess.run(copy, shell=True, cwd=ROOT, check=True)
    for words in (["init", "-q"], ["add", "--all"]):  # the tests of packaging ask git which files there are
        subprocess.run(["git", *words], cwd=place.tree, check=True)
    install(place, f"torch=={place.torch}", "setuptools>=77", "wheel", "ninja")
    install(place, "--no-build-isolation", "-e", ".[demo,dev]")


def _listed(tree: pathlib.Path) -> set[str]:
    """The files that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=tree, check=True, capture_output=True, text=True)
    return {*listed.stdout.split("\0")} - {""}


def install(place: Place, *what: str) -> None:
    done = place.run("pip", "-m", "pip", "install", "-qq", "--no-warn-script-location", *what)
    if done.returncode:
        raise SystemExit(f"torch {place.version}: pip install {' '.join(what)}\n{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
