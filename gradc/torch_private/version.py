"""The versions of torch that gradc is written for, and which of them is imported; another one is refused at import.

    SUPPORTED: the minor versions that gradc was tested with          TORCH: (major, minor) of the one that is imported

Private names of torch change between versions, and gradc does not guess. Where one is called otherwise in a version that is
supported, ``places`` says how.
"""

import os
import warnings

import torch

from gradc.errors import VersionError

SUPPORTED = ("2.13", "2.14", "2.15")
PINNED = "2.13.0"  # what `make venv` installs
ALLOW = "GRADC_ALLOW_TORCH"

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def is_supported() -> bool:
    """True if gradc was tested with the minor version that is imported."""
    return ".".join(map(str, TORCH)) in SUPPORTED


def _refuse_or_warn() -> None:
    found = f"gradc works with torch {', '.join(SUPPORTED)}, but torch {torch.__version__} is imported."
    if os.environ.get(ALLOW) == "1":
        warnings.warn(f"{found} {ALLOW}=1: it is tried all the same, unless a name is missing.", stacklevel=2)
        return
    raise VersionError(
        f"{found}\n"
        f"  gradc reads torch's autograd graph through names that change between versions, so it does not guess.\n"
        f"  Install one of these, say: pip install torch=={PINNED}\n"
        f"  {ALLOW}=1 in the environment lets it try: results may then differ from eager's."
    )


if not is_supported():
    _refuse_or_warn()
