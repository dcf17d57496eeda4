"""Which functions of Python run in a call.

python_of: a call -> their names, in order
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
