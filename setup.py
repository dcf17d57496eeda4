"""Build the optional C++ extension ``gradc._C``; everything else about the package is in pyproject.toml.

Skipped, so that the Python interpreter serves, if there are no sources, if no C++ compiler is found, or if
``GRADC_NO_EXTENSION=1``. With a compiler present, a build that fails is an error. It is built against the installed
torch, hence ``pip install --no-build-isolation -e .``.

``GRADC_SANITIZE=address`` builds it with AddressSanitizer and UndefinedBehaviorSanitizer, for ``make asan``;
``GRADC_SANITIZE=thread`` with ThreadSanitizer, for ``make tsan``.
"""

import glob
import os
import pathlib
import shutil

from setuptools import Extension, setup

SOURCES = sorted(glob.glob("gradc/**/csrc/*.cpp", recursive=True) + ["gradc/bindings/module.cpp"])
HEADERS = sorted(glob.glob("gradc/**/csrc/*.h", recursive=True))
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


def write_units() -> list[str]:
    """Write the units of ``UNITS``, but for those that are as they should be: what is not touched is not compiled again."""
    unit_of = {room: unit for unit, rooms in UNITS.items() for room in rooms}
    included = dict.fromkeys(UNITS, "")
    for source in map(pathlib.Path, SOURCES):
        path = source.relative_to("gradc")
        included[unit_of[path.parts[0]]] += f'#include "{path.as_posix()}"\n'
    FOLDER_OF_UNITS.mkdir(parents=True, exist_ok=True)
    for unit, text in included.items():
        file = FOLDER_OF_UNITS / f"{unit}.cpp"
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
    return [str(FOLDER_OF_UNITS / f"{unit}.cpp") for unit in UNITS]


def extension() -> Extension:
    from torch.utils import cpp_extension

    sanitize = sanitizers()
    # As system headers, so that -Werror concerns our own code only.
    headers = [flag for path in cpp_extension.include_paths() for flag in ("-isystem", path)]
    return Extension(
        "gradc._C",
        write_units(),
        depends=[*SOURCES, *HEADERS],
        language="c++",
        extra_compile_args=[
            *([*SANITIZED, *sanitize] if sanitize else OPTIMIZED), "-ffp-contract=off", "-std=c++20", "-Wall", "-Werror",
            "-I" + os.path.abspath("gradc"), *headers,
        ],
        extra_link_args=sanitize,
        library_dirs=cpp_extension.library_paths(),
        libraries=["c10", "torch", "torch_cpu", "torch_python"],
    )


def build_arguments() -> dict:
    if reason := why_skipped():
        print(f"gradc: the C++ extension is not built: {reason}. The Python interpreter serves, more slowly.")
        return {}
    from torch.utils.cpp_extension import BuildExtension

    os.environ.setdefault("MAX_JOBS", "2")
    return {"ext_modules": [extension()], "cmdclass": {"build_ext": BuildExtension.with_options(use_ninja=True)}}


setup(**build_arguments())
