"""A pytest plugin: every step of the oracle runs with compiled autograd, once to capture and once to replay.

    pytest -p tests.engine.under_capture tests/semantics [--compiler eager]

With ``--compiler eager`` the forward is eager and only the backward is captured. What compiled autograd leaves to torch's
engine does not count as a fallback here.
"""

from __future__ import annotations

from typing import Any

import gradc
from gradc.engine import compiled_autograd
from tests import compilers, oracle

_run = oracle.run
_fallbacks = compilers.Compiler.fallbacks


def _run_captured(step: Any, makers: Any, compiler: compilers.Compiler, seed: int = 0) -> Any:
    if not _is_second.pop():
        _is_second.append(True)
        with compiled_autograd.disable():
            return _run(step, makers, compiler, seed)
    _is_second.append(False)
    with compiled_autograd.enable():
        _run(step, makers, compiler, seed)
        return _run(step, makers, compiler, seed)


def _own_fallbacks(self: compilers.Compiler) -> dict[str, int]:
    return {name: number for name, number in _fallbacks(self).items() if not name.startswith("compiled autograd")}


_is_second = [False]
oracle.run = _run_captured
_num_graphs = compilers.Compiler.num_graphs
compilers.Compiler.num_graphs = lambda self: 999 if self.name == "eager" else _num_graphs(self)  # type: ignore[method-assign]
compilers.Compiler.fallbacks = _own_fallbacks  # type: ignore[method-assign]


def pytest_sessionfinish() -> None:
    print("\n", dict(gradc.counters["compiled_autograd"]), dict(gradc.counters["fallbacks"]))
