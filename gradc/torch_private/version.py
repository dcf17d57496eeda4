"""The version of torch that gradc is written for; another one is refused at import.

Private names of torch change between versions, and gradc does not guess.
"""

import torch

from gradc.errors import VersionError

SUPPORTED = "2.13.0"

if torch.__version__.split("+")[0] != SUPPORTED:
    raise VersionError(
        f"gradc works with torch {SUPPORTED}, but torch {torch.__version__} is imported.\n"
        f"  gradc reads torch's autograd graph through names that change between versions, so it does not guess.\n"
        f"  Install the right one: pip install torch=={SUPPORTED}"
    )
