"""Build the optional C++ extension ``gradc._C``, and say for which torch; all else about the package is in pyproject.toml.

Skipped, so that the Python interpreter serves, if there are no sources, if no C++ compiler is found, or if
``GRADC_NO_EXTENSION=1``. With a compiler present, a build that fails is an error. It is built against the installed
torch, hence ``pip install --no-build-isolation -e .``.

``GRADC_WHEEL=1`` is for ``make wheel``: its version names the one torch that the extension is for.

``GRADC_URL`` is for ``make release``: the address of the repository, which the package's pages then name.

``GRADC_SANITIZE=address`` builds it with AddressSanitizer and UndefinedBehaviorSanitizer, for ``make asan``;
``GRADC_SANITIZE=thread`` with ThreadSanitizer, for ``make tsan``.
"""

import glob
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
from importlib.metadata import version

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = sorted(glob.glob("gradc/**/csrc/*.cpp", recursive=True) + ["gradc/bindings/module.cpp"])
HEADERS = sorted(glob.glob("gradc/**/csrc/*.h", recursive=True))
ANY_TORCH = "torch>=2.13,<2.16"
OTHERS = ["numpy", "sympy", "tqdm"]
IS_WHEEL = os.environ.get("GRADC_WHEEL") == "1"
# What is compiled at once: the sources of some rooms. Torch's headers take six seconds for each unit, so there are few.
UNITS = {
    "capture": ["bindings", "csrc", "capture", "frontend", "tape"],
    "executor": ["executor"],
    "region": ["optim", "region"],
    "walk": ["nodes", "replay", "walk"],
}
FOLDER_OF_UNITS = pathlib.Path("build", "units")
OPTIMIZED = ["-O3", "-g0"]
SANITIZED = ["-O1", "-g1", "-fno-omit-frame-pointer"]
SANITIZERS = {
    # Without vptr, which needs type information that torch's libraries do not export.
    "address": ["-fsanitize=address,undefined", "-fno-sanitize=vptr"],
    # Fences in torch's headers, which it does not know, guard the counts of Python's references.
    "thread": ["-fsanitize=thread", "-Wno-tsan"],
}


class TorchIsMissing(build_ext):
    """Instead of compiling, where there is no torch to compile for."""

    def run(self) -> None:
        raise SystemExit(
            "gradc's extension is compiled for the torch that is installed, and there is none here:"
            " pip's build isolation hides it.\n"
            "  In a checkout: pip install --no-build-isolation .\n"
            "  or, for a gradc without the extension, which is slow: GRADC_NO_EXTENSION=1 pip install ."
        )


def metadata() -> dict:
    """Version and dependencies. The version of a wheel names its torch.

    Its dependency does not: pip would bring that torch in the place of the one that is there, which the extension refuses,
    saying what to install.
    """
    number = re.search('__version__ = "(.*)"', pathlib.Path("gradc", "__init__.py").read_text())[1]
    local = f"+torch{'.'.join(version('torch').split('.')[:2])}" if IS_WHEEL else ""
    return {"version": number + local, "install_requires": [ANY_TORCH, *OTHERS], "project_urls": urls()}


def urls() -> dict[str, str]:
    """Of the repository at ``GRADC_URL``, which whoever publishes knows; none without."""
    if not (url := os.environ.get("GRADC_URL", "").rstrip("/")):
        return {}
    pages = {"Documentation": "docs", "Changelog": "CHANGELOG.md", "Check torch.compile": "docs/check.md", "Issues": "issues"}
    return {"Homepage": url, **{name: f"{url}/{page}" for name, page in pages.items()}}


def why_skipped() -> str:
    """Why no extension is built, or "" if one is."""
    if os.environ.get("GRADC_NO_EXTENSION") == "1":
        return "GRADC_NO_EXTENSION=1"
    if not SOURCES:
        return "there are no C++ sources"
    compiler = os.environ.get("CXX", "c++").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C++ compiler ({compiler!r} was not found)"
    return ""


def sanitizers() -> list[str]:
    """The flags that GRADC_SANITIZE asks for; none where it is not set."""
    asked = os.environ.get("GRADC_SANITIZE", "")
    if asked and asked not in SANITIZERS:
        raise SystemExit(f"GRADC_SANITIZE={asked}: must be one of {', '.join(SANITIZERS)}")
    return SANITIZERS.get(asked, [])


def threads() -> list[str]:
    """What has own loops run on several threads: at::parallel_for, a template in torch's headers, runs on one without it.

    Nothing is linked: torch's own OpenMP serves, which its libraries bring, so that there is one pool of threads. It is gcc's:
    clang calls another. The sanitizers know nothing of its waiting.
    """
    compiler = os.environ.get("CXX", "c++").split()
    macros = subprocess.run([*compiler, "-dM", "-E", "-x", "c++", os.devnull], capture_output=True, text=True).stdout
    return [] if sanitizers() or "__clang__" in macros else ["-fopenmp"]


def write_units() -> list[str]:
    """Write the units of ``UNITS``, but for those that are as they should be: what is not touched is not compiled again.

    Each names torch's version at its end, so that all are compiled again for another.
    """
    unit_of = {room: unit for unit, rooms in UNITS.items() for room in rooms}
    included = dict.fromkeys(UNITS, "")
    for source in map(pathlib.Path, SOURCES):
        path = source.relative_to("gradc")
        included[unit_of[path.parts[0]]] += f'#include "{path.as_posix()}"\n'
    FOLDER_OF_UNITS.mkdir(parents=True, exist_ok=True)
    for unit, lines in included.items():
        file, text = FOLDER_OF_UNITS / f"{unit}.cpp", f"{lines}// for torch {version('torch')}\n"
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
    return [str(FOLDER_OF_UNITS / f"{unit}.cpp") for unit in UNITS]


def extension() -> Extension:
    import torch
    from torch.utils import cpp_extension

    sanitize = sanitizers()
    # As system headers, so that -Werror concerns our own code only.
    headers = [flag for path in cpp_extension.include_paths() for flag in ("-isystem", path)]
    # Torch's checks name the file they stand in, and so does what they raise: not where it was when this was compiled.
    hidden = [f"-ffile-prefix-map={folder}/=" for folder in (pathlib.Path.cwd(), pathlib.Path(torch.__file__).parents[1])]
    return Extension(
        "gradc._C",
        write_units(),
        depends=[*SOURCES, *HEADERS],
        language="c++",
        extra_compile_args=[
            *([*SANITIZED, *sanitize] if sanitize else OPTIMIZED), *threads(),
            "-ffp-contract=off", "-std=c++20", "-Wall", "-Werror", *hidden, "-I" + os.path.abspath("gradc"), *headers,
        ],
        extra_link_args=sanitize,
        library_dirs=cpp_extension.library_paths(),
        libraries=["c10", "torch", "torch_cpu", "torch_python"],
    )


def build_arguments() -> dict:
    if reason := why_skipped():
        if IS_WHEEL:
            raise SystemExit(f"gradc: GRADC_WHEEL=1 is for a wheel with the extension, but {reason}.")
        print(f"gradc: the C++ extension is not built: {reason}. The Python interpreter serves, more slowly.")
        return {}
    if importlib.util.find_spec("torch") is None:
        return {"ext_modules": [Extension("gradc._C", [])], "cmdclass": {"build_ext": TorchIsMissing}}
    from torch.utils.cpp_extension import BuildExtension

    os.environ.setdefault("MAX_JOBS", "2")
    return {"ext_modules": [extension()], "cmdclass": {"build_ext": BuildExtension.with_options(use_ninja=True)}}


setup(**metadata(), **build_arguments())
