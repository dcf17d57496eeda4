"""Before gradc compiles anything: look whether it is built for this torch and knows its ways, and change what must be changed.

    begin: (what makes a backend) -> None        at each compilation, since the user may undo patches; importing does nothing

Outside of Dynamo, which would wrap what is raised. The ways of torch are looked at (``probe``) where it is not one of the very
releases that ``make matrix`` runs: a nightly build, one of somebody's own, another patch release, or one that
GRADC_ALLOW_TORCH=1 lets in. What a few programs find, gradc's own tests have found in those releases long before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from gradc import native
from gradc.errors import VersionError
from gradc.frontend import probe
from gradc.frontend.patches import patches
from gradc.options import CompileOptions
from gradc.torch_private import version
from gradc.torch_private.autograd import start_engine_without_accelerator
from gradc.torch_private.dynamo_patches.skip_marks import ask_again

MakeBackend = Callable[[CompileOptions], Callable[..., Any]]


def begin(backend: MakeBackend) -> None:
    """Make torch ready.

    Raises:
        VersionError: if the extension was built for another torch, if there is no name that gradc replaces, or if torch behaves
            otherwise than gradc expects. Nothing of torch is changed then.
    """
    native.is_built()
    start_engine_without_accelerator()
    if version.is_tested():
        patches().apply()
    else:
        _apply_where_understood(backend)
    ask_again()


def _apply_where_understood(backend: MakeBackend) -> None:
    before = [patch.name for patch in patches() if patch.is_applied]
    patches().apply()
    try:
        _look_at_torch(backend)
    except VersionError:
        for patch in (patch for patch in reversed(patches()) if patch.name not in before):
            patch.undo()
        raise


@functools.cache
def _look_at_torch(backend: MakeBackend) -> None:
    """Once in a process: what raises is not kept, and is looked at again."""
    otherwise = probe.what_is_otherwise(backend(CompileOptions(fullgraph=True)))
    if not otherwise:
        return
    tested = ", ".join(version.RELEASES)
    found = f"gradc was tested with torch {tested}, and torch {torch.__version__} behaves otherwise:\n{otherwise}"
    version.refuse_or_warn(found, "What differs here may differ in your program.")
