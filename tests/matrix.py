"""Run the tests on several versions of torch and of Python, each in an environment and a copy of the tree of its own.

    python -m tests.matrix [TORCH[@PYTHON] ...] [--tests PATH ...]      prints one line for each: what passed, what failed

``2.14.1`` is with the Python that runs this, ``2.13.0@3.12`` with ``python3.12``. The copy lies in build/matrix:
the extension is built in place, for one version of torch.
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

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(self.python), *arguments], cwd=self.tree, capture_output=True, text=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--tests", nargs="+", default=["tests"])
    options = parser.parse_args()
    are_good = [tell(Place(version), options.tests) for version in options.versions]
    return 0 if all(are_good) else 1


def tell(place: Place, tests: list[str]) -> bool:
    prepare(place)
    done = place.run("-m", "pytest", "-q", "-rfE", "--tb=line", *tests)
    *lines, counts = done.stdout.strip().splitlines() or [done.stderr]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    print(f"torch {place.version}: {counts.strip('= ')}", *failed, sep="\n  ", flush=True)
    return done.returncode == 0


def prepare(place: Place) -> None:
    """Make the environment, copy what git knows of the tree, and build the extension; what is there already stays."""
    place.tree.mkdir(parents=True, exist_ok=True)
    if not place.python.exists():
        subprocess.run([place.base, "-m", "venv", place.python.parents[1]], check=True)
    copy = f"git ls-files -z | tar --create --null --files-from=- | tar --extract --directory={place.tree}"
    subprocess.run(copy, shell=True, cwd=ROOT, check=True)
    install(place, f"torch=={place.torch}", "setuptools>=77", "wheel", "ninja")
    install(place, "--no-build-isolation", "-e", ".[demo,dev]")


def install(place: Place, *what: str) -> None:
    done = place.run("-m", "pip", "install", "-qq", "--no-warn-script-location", *what)
    if done.returncode:
        raise SystemExit(f"torch {place.version}: pip install {' '.join(what)}\n{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
