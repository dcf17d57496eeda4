"""The captured graph as a GraphModule, which prints as in the tutorial and runs.

build_graph: (Program, details) -> GraphModule
"""

from __future__ import annotations

from typing import Any

import torch

from gradc.ir.program import Program


def build_graph(program: Program, details: Any) -> torch.fx.GraphModule:
    raise NotImplementedError
