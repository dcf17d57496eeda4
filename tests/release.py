"""Make what is published, in dist: an sdist, a wheel for each torch and Python, and pages that pip takes for an index.

    python -m tests.release [--torch 2.13.0 ...] [--python python3.11 ...] [--url https://...]      for ``make release``

Each wheel is compiled from the sdist in an environment of its own, in build/release, and trains there where no compiler is. A
Python that is not there, or a torch that has no build for it, is said and left out; a wheel that does not compile or train is
removed, and the exit status is 1. A wheel names its torch in its version, and pip takes the highest there is: so each torch has
an index of its own, ``dist/simple/torch2.13``, from which what was made is installed in the end.
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
    made, num_failed = {}, 0
    for torch, python in pairs:
        try:
            made[torch, python] = wheel_for(torch, python, options.url)
        except NotThereError as error:
            print(f"release: no wheel for torch {torch} and {python}: {error}")
        except FailedError as error:
            num_failed += 1
            print(f"release: FAILED for torch {torch} and {python}: {error}")
    write_indexes(DIST)
    num_failed += sum(not is_installed_from_index(torch, python) for torch, python in made)
    failed = f", {num_failed} failed" if num_failed else ""
    print(f"release: {len(made)} wheels of {len(pairs)}{failed}, in {DIST}")
    return 0 if made and not num_failed else 1


class NotThereError(Exception):
    """What a wheel is made with is not on this machine."""


class FailedError(Exception):
    """A wheel that should be there is not."""


def inside(torch: str, python: str) -> str:
    """The interpreter of the environment for a wheel."""
    return str(FOLDER / f"{python}-torch{torch}" / "bin" / "python")


def wheel_for(torch: str, python: str, url: str) -> pathlib.Path:
    """Compiled from the sdist, and tried.

    Raises:
        NotThereError: without this Python, or this torch for it.
        FailedError: if it does not compile, or does not train as eager does.
    """
    base, own = shutil.which(python), pathlib.Path(inside(torch, python))
    if base is None:
        raise NotThereError(f"there is no {python} on the PATH")
    if not own.exists() and not is_done(base, "-m", "venv", str(own.parents[1])):
        raise NotThereError(f"{base} makes no environment")
    if not is_done(own, "-m", "pip", "install", "-q", f"torch=={torch}", *TOOLS):
        raise NotThereError(f"pip finds no torch {torch} for it")
    environment = {"GRADC_URL": url, "PATH": f"{own.parent}:{os.environ['PATH']}"}
    sdist = next(DIST.glob("gradc-*.tar.gz"), None)
    if sdist is None:
        is_done(own, "setup.py", "-q", "sdist", GRADC_NO_EXTENSION="1", **environment)
        sdist = next(DIST.glob("gradc-*.tar.gz"))
    before = {*DIST.glob("*.whl")}
    words = ("wheel", "-q", "--no-build-isolation", "--no-deps", "--no-cache-dir", "-w", str(DIST), str(sdist))
    if not is_done(own, "-m", "pip", *words, GRADC_WHEEL="1", **environment):
        raise FailedError("the extension does not compile")
    (wheel,) = {*DIST.glob("*.whl")} - before
    try_wheel(own, wheel)
    print(f"release: {wheel.name}", flush=True)
    return wheel


def try_wheel(own: pathlib.Path, wheel: pathlib.Path) -> None:
    """With what it needs installed beside it: the demo's needs, too. Removes what does not train."""
    again = ("--force-reinstall", "--no-deps", wheel)
    for words in (("pip", "install", "-q", *again), ("pip", "install", "-q", f"{wheel}[demo]"), ("tests.try_wheel", wheel)):
        if not is_done(own, "-m", *words):
            wheel.unlink()
            raise FailedError(f"{wheel.name} does not install, or does not train as eager does")


def is_installed_from_index(torch: str, python: str) -> bool:
    """As a user installs it, from the folder."""
    index, own = DIST / "simple" / f"torch{'.'.join(torch.split('.')[:2])}", inside(torch, python)
    options = ("--isolated", "install", "-q", "--no-deps", "--force-reinstall", "--index-url", index.as_uri())
    is_good = is_done(own, "-m", "pip", *options, "gradc") and is_done(own, "-I", "-c", _IMPORTED.format(torch), at=DIST)
    print(f"release: pip install --no-deps --index-url {index.as_uri()} gradc: {'works' if is_good else 'FAILED'}, {python}")
    return is_good


_IMPORTED = "import gradc.native, torch; assert gradc.native.status().name == 'native' and torch.__version__.startswith('{}')"


def is_done(*command: str | pathlib.Path, at: pathlib.Path = ROOT, **environment: str) -> bool:
    done = subprocess.run([*map(str, command)], cwd=at, env={**os.environ, **environment}, capture_output=True, text=True)
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
