"""The versions of torch that gradc is written for, and which of them is imported; another one is refused at import.

    SUPPORTED: the minor versions that gradc was tested with          TORCH: (major, minor) of the one that is imported
    RELEASES:  the very releases that were            ALLOW: what lets another one be tried
    TAKEN_FOR: the minor version whose ways the imported torch is taken to have

Private names of torch change between versions, and gradc does not guess. ``dynamo_names`` has those of Dynamo that are called
otherwise in one of the supported versions.
"""

import os
import re
import warnings

import torch

from gradc.errors import VersionError
from gradc.torch_private.missing import missing_names

SUPPORTED = ("2.13", "2.14", "2.15")
RELEASES = ("2.13.0", "2.14.1", "2.15.0")  # what `make matrix` runs
_OFFICIAL = re.compile(r"cpu|cu\d+|rocm[\d.]+|xpu")  # the builds of a release, behind the "+" of their versions
PINNED = "2.13.0"  # what `make venv` installs
ALLOW = "GRADC_ALLOW_TORCH"

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
_MINOR = ".".join(map(str, TORCH))
TAKEN_FOR = _MINOR if _MINOR in SUPPORTED else SUPPORTED[-1]


def is_supported() -> bool:
    """True if gradc was tested with the minor version that is imported."""
    return _MINOR in SUPPORTED


def is_tested(version: str = torch.__version__) -> bool:
    """True for a release that gradc was tested with, of whichever build; not for what somebody compiled of its sources."""
    release, _, build = version.partition("+")
    return release in RELEASES and (not build or _OFFICIAL.fullmatch(build) is not None)


def refuse_or_warn(found: str, why: str) -> None:
    """Raise ``found`` with ``why`` and what to do; only warn, where the user wants this torch to be tried.

    Raises:
        VersionError: unless GRADC_ALLOW_TORCH=1.
    """
    if os.environ.get(ALLOW) == "1":
        warnings.warn(f"{found} {ALLOW}=1: it is tried all the same, unless a name is missing.", stacklevel=3)
        return
    raise VersionError(
        f"{found}\n"
        f"  {why}\n"
        f"  Install one of these, say: pip install torch=={PINNED}\n"
        f"  {ALLOW}=1 in the environment lets it try: results may then differ from eager's."
    )


if not is_supported():
    refuse_or_warn(
        f"gradc works with torch {', '.join(SUPPORTED)}, but torch {torch.__version__} is imported.",
        "gradc reads torch's autograd graph through names that change between versions, so it does not guess.",
    )
    if missing := missing_names():
        told = "\n  ".join(missing)
        raise VersionError(f"torch {torch.__version__} lacks names that gradc uses:\n  {told}")
