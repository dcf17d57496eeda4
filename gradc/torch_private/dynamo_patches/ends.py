"""A graph of Dynamo's ends here for a reason of gradc's, which is counted, and which the user reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from torch._dynamo.exc import unimplemented

PREFIX = "gradc: "  # tells gradc's reasons from Dynamo's
DICTIONARY_OF_ATTRIBUTES = "dictionary of attributes"


def end_graph(
    name: str, explanation: str, context: object = None, *, hints: Iterable[str] = (), skip_frame: bool = False
) -> NoReturn:
    """End it before the call that is being traced, or leave the whole function to Python with ``skip_frame``.

    ``name``: what is counted. ``context``: what was met; the name, if nothing more is to be said.
    """
    what = name if context is None else str(context)
    unimplemented(gb_type=PREFIX + name, context=what, explanation=explanation, hints=[*hints], skip_frame=skip_frame)
