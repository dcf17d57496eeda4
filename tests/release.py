"""Make what is published, in dist: an sdist, a wheel for each torch and Python, and pages that pip takes for an index.

    python -m tests.release [--torch 2.13.0 ...] [--python python3.11 ...] [--url https://...]      for ``make release``

Each wheel is compiled from the sdist in an environment of its own, in build/release. A Python that is not there, or a torch
that has no build for it, is said and left out. A wheel names its torch in its version, and pip takes the highest there is: so
each torch has an index of its own, ``dist/simple/torch2.13``. What was made is tried from there, in an empty environment.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
DIST, FOLDER = ROOT / "dist", ROOT / "build" / "release"
TOOLS = ("setuptools>=77", "wheel", "ninja")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", nargs="+", default=["2.13.0"])
    parser.add_argument("--python", nargs="+", default=["python3.11"])
    parser.add_argument("--url", default="", help="of the repository, for the package's links")
    options = parser.parse_args()
    if not options.url:
        print("release: no URL=https://... of the repository: the package will have no links")
    shutil.rmtree(DIST, ignore_errors=True)
    pairs = [(torch, python) for python in options.python for torch in options.torch]
    made = [wheel for torch, python in pairs if (wheel := wheel_for(torch, python, options.url))]
    write_indexes(DIST)
    print(f"release: {len(made)} wheels of {len(pairs)}. To try: pip install --index-url file://{DIST}/simple/torch2.13 gradc")
    return 0 if made else 1


def wheel_for(torch: str, python: str, url: str) -> pathlib.Path | None:
    """Compiled from the sdist; None, said, where it cannot be."""
    base, place = shutil.which(python), FOLDER / f"{python}-torch{torch}"
    if base is None:
        return left_out(torch, python, f"there is no {python} on the PATH")
    if not (place / "bin" / "python").exists() and not is_done(base, "-m", "venv", str(place)):
        return left_out(torch, python, f"{base} makes no environment")
    inside = str(place / "bin" / "python")
    if not is_done(inside, "-m", "pip", "install", "-q", f"torch=={torch}", *TOOLS):
        return left_out(torch, python, f"pip finds no torch {torch} for it")
    environment = {"GRADC_URL": url, "PATH": f"{place / 'bin'}:{os.environ['PATH']}"}
    sdist = next(DIST.glob("gradc-*.tar.gz"), None)
    if sdist is None:
        is_done(inside, "setup.py", "-q", "sdist", GRADC_NO_EXTENSION="1", **environment)
        sdist = next(DIST.glob("gradc-*.tar.gz"))
    before = {*DIST.glob("*.whl")}
    words = ("wheel", "-q", "--no-build-isolation", "--no-deps", "--no-cache-dir", "-w", str(DIST), str(sdist))
    if not is_done(inside, "-m", "pip", *words, GRADC_WHEEL="1", **environment):
        return left_out(torch, python, "the extension does not compile")
    (wheel,) = {*DIST.glob("*.whl")} - before
    if not is_done(inside, "-m", "tests.try_wheel", str(wheel)):
        return left_out(torch, python, f"{wheel.name} does not train as eager does")
    print(f"release: {wheel.name}")
    return wheel


def left_out(torch: str, python: str, why: str) -> None:
    print(f"release: no wheel for torch {torch} and {python}: {why}")


def is_done(*command: str, **environment: str) -> bool:
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode:
        print(done.stdout[-2000:] + done.stderr[-2000:], file=sys.stderr)
    return done.returncode == 0


def write_indexes(dist: pathlib.Path) -> None:
    """A page for each torch, as PEP 503 has it: it can be put on any server of files, and pip reads it from a disk, too."""
    wheels = sorted(dist.glob("*.whl"))
    for torch in sorted({wheel.name.split("+torch")[1].split("-")[0] for wheel in wheels}):
        files = [*(wheel for wheel in wheels if f"+torch{torch}-" in wheel.name), *sorted(dist.glob("gradc-*.tar.gz"))]
        folder = dist / "simple" / f"torch{torch}"
        (folder / "gradc").mkdir(parents=True, exist_ok=True)
        (folder / "index.html").write_text(_page('<a href="gradc/">gradc</a>'))
        (folder / "gradc" / "index.html").write_text(_page("<br>\n".join(map(_link, files))))


def _link(file: pathlib.Path) -> str:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    name = file.name.replace("+", "%2B")
    return f'<a href="../../../{name}#sha256={digest}" data-requires-python="&gt;=3.11">{file.name}</a>'


def _page(body: str) -> str:
    return f"<!doctype html>\n<title>gradc</title>\n{body}\n"


if __name__ == "__main__":
    sys.exit(main())
