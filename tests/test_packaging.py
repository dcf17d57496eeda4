"""What is installed: an sdist that holds what compiling takes, and a wheel that is for one torch, says so, and brings no other.

``make wheel`` compiles for real; here the extension that is there already goes into the wheel.
"""

from __future__ import annotations

import email
import os
import pathlib
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version

import pytest
import torch

import gradc
from gradc import native
from tests.try_wheel import ROOT, check_contents, check_installed

MINOR = ".".join(torch.__version__.split(".")[:2])
ANY_TORCH = "torch<2.16,>=2.13"


def setup(tree: pathlib.Path, *words: str, hidden: str = "", **variables: str) -> str:
    """What ``setup.py`` prints. No C++ compiler is asked anything, ``hidden`` is not there to be imported."""
    environment = {**os.environ, "CXX": "true", **variables}
    hide = f"import runpy, sys\nsys.modules.update(dict.fromkeys({hidden.split()}))\n"
    script = f"{hide}runpy.run_path('setup.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", script, *words], cwd=tree, env=environment, capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A copy of what git knows, and of what lies around where gradc was compiled for another torch."""
    folder = tmp_path_factory.mktemp("tree")
    copy = f"git ls-files -z --cached --others --exclude-standard | tar -c --null -T - | tar -x -C {folder}"
    subprocess.run(copy, shell=True, cwd=ROOT, check=True)
    for stale in ("gradc/_C.stale.so", "gradc/_C.cpython-39-x86_64-linux-gnu.so", "build/units/capture.cpp"):
        (folder / stale).parent.mkdir(parents=True, exist_ok=True)
        (folder / stale).write_text("of another torch")
    return folder


@pytest.fixture(scope="module")
def sdist(tree: pathlib.Path) -> pathlib.Path:
    """What the sdist holds, unpacked."""
    said = setup(tree, "-q", "sdist", "-d", "dist", GRADC_NO_EXTENSION="1")
    with tarfile.open(next((tree / "dist").glob("*.tar.gz"), pathlib.Path(said))) as archive:
        archive.extractall(tree / "unpacked", filter="data")
    return tree / "unpacked" / f"gradc-{gradc.__version__}"


@pytest.fixture(scope="module")
def wheel(sdist: pathlib.Path) -> pathlib.Path:
    """As ``make wheel`` builds it, but that the extension is not compiled."""
    setup(sdist, "-q", "build_py", "--build-lib", "built")
    extension = pathlib.Path(gradc.native.extension.__file__)
    (sdist / "built" / "gradc" / extension.name).write_bytes(extension.read_bytes())
    words = ("build", "--build-lib", "built", "bdist_wheel", "--skip-build", "--dist-dir", "dist")
    said = setup(sdist, "-q", *words, GRADC_WHEEL="1")
    return next((sdist / "dist").glob("*.whl"), pathlib.Path(said))


def metadata_of(wheel: pathlib.Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_an_sdist_holds_what_compiling_takes_and_nothing_that_was_compiled(sdist: pathlib.Path) -> None:
    held = {str(path.relative_to(sdist)) for path in sdist.rglob("*") if path.is_file()}
    package = {str(path.relative_to(ROOT)) for path in (ROOT / "gradc").rglob("*") if path.is_file()}
    package = {name for name in package if not name.endswith((".so", ".pyc"))}
    assert package <= held
    generated = {"PKG-INFO", "setup.cfg"} | {name for name in held if name.startswith("gradc.egg-info/")}
    rest = {"CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "docs/reasons.md", "pyproject.toml", "setup.py"}
    assert held - package - generated == rest


def test_an_sdist_is_for_every_torch(sdist: pathlib.Path) -> None:
    metadata = email.message_from_string((sdist / "PKG-INFO").read_text())
    assert metadata["Version"] == gradc.__version__
    assert ANY_TORCH in metadata.get_all("Requires-Dist", [])


def test_a_wheel_says_its_torch_and_would_bring_no_other(wheel: pathlib.Path) -> None:
    metadata = metadata_of(wheel)
    assert metadata["Version"] == f"{gradc.__version__}+torch{MINOR}"
    assert ANY_TORCH in metadata.get_all("Requires-Dist", [])
    assert wheel.name.startswith(f"gradc-{gradc.__version__}+torch{MINOR}-cp") and "-none-" not in wheel.name


def test_a_wheel_holds_the_package_and_one_extension_without_a_path_of_this_machine(wheel: pathlib.Path) -> None:
    check_contents(wheel)


def test_a_wheel_installs_without_a_compiler_and_leaves_torch_alone(wheel: pathlib.Path, tmp_path: pathlib.Path) -> None:
    check_installed(wheel, tmp_path)


def test_a_build_without_a_compiler_says_what_serves(sdist: pathlib.Path) -> None:
    said = setup(sdist, "build_ext", CXX="no-such-compiler")
    reason = "there is no C++ compiler ('no-such-compiler' was not found)"
    assert f"gradc: the C++ extension is not built: {reason}. The Python interpreter serves, more slowly.\n" in said


def test_no_wheel_without_the_extension(sdist: pathlib.Path) -> None:
    said = setup(sdist, "bdist_wheel", GRADC_WHEEL="1", CXX="no-such-compiler")
    assert "GRADC_WHEEL=1 is for a wheel with the extension, but there is no C++ compiler ('no-such-compiler' was" in said


def test_compiling_without_torch_says_what_hides_it(sdist: pathlib.Path) -> None:
    said = setup(sdist, "build", hidden="torch")
    assert "pip's build isolation hides it.\n  In a checkout: pip install --no-build-isolation .\n" in said


def test_what_is_compiled_for_another_torch_is_compiled_again(sdist: pathlib.Path) -> None:
    setup(sdist, "--version")
    units = sorted((sdist / "build" / "units").glob("*.cpp"))
    assert units and all(unit.read_text().endswith(f"// for torch {version('torch')}\n") for unit in units)


@pytest.mark.skipif(not native.is_built() or "GRADC_SANITIZE" in os.environ, reason="nothing compiled, or without threads")
def test_own_loops_run_on_the_threads_of_torch() -> None:
    """Compiled without OpenMP, parallel_for runs on one thread; with an OpenMP of its own there would be two pools."""
    binary = pathlib.Path(native.extension.__file__).read_bytes()
    assert b"GOMP_parallel" in binary or torch.__config__.parallel_info().find("OpenMP") < 0
    assert b"libgomp" not in binary
