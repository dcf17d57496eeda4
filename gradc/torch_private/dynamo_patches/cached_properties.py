"""``functools.cached_property`` as Python 3.12 has it: before, the first who asks holds a lock, which no graph takes."""

from __future__ import annotations

import functools
from typing import Any

from torch._dynamo.variables.functions import UserFunctionVariable

from gradc.torch_private.dynamo_names import FUNCTIONS
from gradc.torch_private.dynamo_patches.sums import traced
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import around

_GET = functools.cached_property.__get__


def keep_what_properties_cache() -> Patch:
    """Trace a lookup without the lock: two threads that are the first to ask may both compute, as on Python 3.12."""
    return Patch(
        "keep_what_properties_cache",
        "Dynamo enters no lock, so on Python 3.11 the first lookup of a cached property ended the graph.",
        tuple(around(kind, "call_function", _call) for kind in FUNCTIONS),
    )


def _call(original: Method, self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
    if self.fn is not _GET:
        return original(self, tx, args, kwargs)
    return UserFunctionVariable(_get).call_function(tx, [*self.self_args(), *args], kwargs)


@traced
def _get(self: Any, instance: Any, owner: Any = None) -> Any:
    if instance is None or self.attrname is None or not hasattr(instance, "__dict__"):
        return _GET(self, instance, owner)
    cache = instance.__dict__
    if self.attrname not in cache:
        cache[self.attrname] = self.func(instance)
    return cache[self.attrname]
