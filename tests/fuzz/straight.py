"""Generated programs as steps whose loss goes straight to ``backward()``: run without nodes, and in the end as one plan.

    as_step: Program -> Program

The compiled function makes a loss of what it would return, and calls ``backward()`` itself. It is called often enough for its
forward and backward to be joined; gradients are cleared at times, and added up at others.
"""

from __future__ import annotations

import dataclasses

from tests.fuzz.program import Block, Program

NUM_CALLS = 6  # the first calls run forward and backward one by one


def as_step(program: Program) -> Program:
    """See the module's docstring."""
    names = ", ".join(program.inputs)
    leaves = ", ".join(name for name, maker in program.inputs.items() if maker.startswith("leaf"))
    values = ", ".join(dict.fromkeys(program.outputs.values()))
    call = Block(
        f"for number in range({NUM_CALLS}):",
        (
            f"attempt(events, lambda: f({names}))",
            f"leaves = [{leaves}]",
            "events.append([None if leaf.grad is None else leaf.grad.clone() for leaf in leaves])",
            Block("for leaf in leaves:", ("leaf.grad = leaf.grad if number % 3 == 1 else None",)),
        ),
    )
    return dataclasses.replace(
        program,
        body=(*program.body, f"loss = straight_loss({values})", f"seen = copies_of(loss, {values})", "loss.backward()"),
        outputs={"seen": "seen"},
        driver=(call,),
    )
