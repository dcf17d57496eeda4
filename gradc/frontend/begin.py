"""Before gradc compiles anything: look whether this torch is the one that it was built for, then change what has to be changed.

    begin: () -> None            at the first compilation and at each, since the user may undo patches; importing does nothing

Outside of Dynamo, which would wrap what is raised.
"""

from __future__ import annotations

from gradc import native
from gradc.frontend.patches import patches


def begin() -> None:
    """Make torch ready.

    Raises:
        VersionError: if the extension was built for another torch, or if there is no name that gradc replaces. Nothing of torch
            is changed then.
    """
    native.is_built()
    patches().apply()
