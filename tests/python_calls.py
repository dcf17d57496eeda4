"""Which functions of Python run in a call.

    python_of:  a call -> their names, in order
    resumed_in: a call -> those among them in which Dynamo goes on behind a graph break of a function named ``step``
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def python_of(run: Callable[[], Any]) -> list[str]:
    """See the module's docstring."""
    names: list[str] = []
    sys.setprofile(lambda frame, event, arg: names.append(frame.f_code.co_name) if event == "call" else None)
    try:
        run()
    finally:
        sys.setprofile(None)
    return names


def resumed_in(run: Callable[[], Any]) -> list[str]:
    """See the module's docstring."""
    return [name for name in python_of(run) if name.startswith("torch_dynamo_resume_in_step")]
