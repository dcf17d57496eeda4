"""What gradc knows of single kinds of autograd nodes beyond what they tell themselves: one row a fact, with its reason.

    node in LEAVES            LEAVES.why

As ``ir.ops`` is for ops. Kinds go by the name of the node's Python type: "MulBackward0", "AccumulateGrad". A formula that
gradc has for a node stands in ``backward.formulas``; what the walk of a live graph must know, in walk/csrc/kinds.cpp.
"""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class NodeFact:
    """Something that is true of the nodes whose type is named in ``kinds``, and why that matters."""

    why: str
    kinds: frozenset[str]

    def __contains__(self, node: Any) -> bool:
        return type(node).__name__ in self.kinds


def _fact(why: str, *kinds: str) -> NodeFact:
    return NodeFact(why, frozenset(kinds))


LEAVES = _fact("takes the gradient of a leaf: the graph ends there", "AccumulateGrad")
HIDES_NODE = _fact("stands for an op in place on a view, and hides the node of that op", "CopySlices")
CASTS = _fact("casts: where autocast is on, the use of a weight whose copy may be shared", "ToCopyBackward0")
RUNS_CPP_OF_OTHERS = _fact("runs the C++ code of a custom op, of which nothing is known", "CppFunction")
ASKS_FOR_SUBCLASS = _fact(
    "its formula takes another path for tensors that are like a subclass, as fake tensors are: other last bits, strides or "
    "signs, or (LinalgEig) no error for a loss that depends on the phase of eigenvectors",
    "MaskedSelectBackward0", "LinalgEigBackward0",
)  # fmt: skip
ASKS_FOR_SUBCLASS_IF_COMPLEX = _fact("the same, for complex tensors alone", "LinalgEighBackward0")
ASKS_UNDER_CREATE_GRAPH = _fact(
    "the same under create_graph, or what is recorded there is another: other strides and last bits at second order",
    *ASKS_FOR_SUBCLASS.kinds,
    "LinalgDetBackward0", "LinalgEighBackward0", "LinalgHouseholderProductBackward0", "OrmqrBackward0",
    "ProdBackward0", "ProdBackward1", "CumprodBackward0",
)  # fmt: skip
