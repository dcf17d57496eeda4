"""One captured program, with its name: it prints itself, and saves itself as Python that runs without gradc.

gradc_forward_3                        the forward of region 3
gradc_forward_3_retrace_1              the same, made again with other numbers for its sizes or floats
gradc_backward_3_segment_0_state_1     the backward of its first segment, in the second state that it was compiled for
gradc_compiled_autograd_0              a piece of a backward pass that compiled autograd captured, for a backend to run
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradc.ir.program import Program
from gradc.ir.script import save, script
from gradc.ir.text import print_program
from gradc.torch_private.traces import Compilation


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class CapturedProgram:
    """What a backend of gradc's was given to run: ATen calls, forward or backward. ``str`` of it is its text.

    Attributes:
        name: ``gradc_forward_0``, ``gradc_backward_0_segment_1_state_0``: of which region it is the forward, or of which
            segment of it the backward, and for which of the states in which that ran.
        program: the calls.
        inputs: what it was called with first, if that was asked for; else None.
        compilation: the one of Dynamo's that the region comes from, which ``tlparse`` and profiles call ``0/0``; None if
            there was none.
        is_grad_enabled: the grad mode in which it runs. Autograd sees none of the calls, but some kernels ask for it.
    """

    name: str
    program: Program
    inputs: tuple[Any, ...] | None = None
    compilation: Compilation | None = None
    is_grad_enabled: bool = False

    def __repr__(self) -> str:
        return f"<{self.name}, {len(self.program.instructions)} calls>"

    def __str__(self) -> str:
        return print_program(self.program)

    def save(self, path: str | os.PathLike[str], inputs: Sequence[Any] | None = None) -> Path:
        """Write the program as a Python file that runs by itself: it imports torch alone, and makes the calls in order.

            for program in gradc.programs(step)(x):
                program.save(f"{program.name}.py")

        The file has ``make_inputs()`` and ``run(inputs)``, which gives the bits that gradc gives on the same inputs. Large
        tensors lie in a file beside it that ends in ``.pt``.

        Arguments:
            path: of the file; ends in ``.py``.
            inputs: what ``make_inputs`` is to return: one tensor or int for each input. Without them it returns those that
                the program was called with, if they were kept, or else random ones of the captured shapes and dtypes.

        Returns:
            The path.

        Raises:
            ConfigError: for another ending, a wrong number of inputs, or a call that no file can make, which is named.
        """
        path = Path(path)
        inputs = self.inputs if inputs is None else inputs
        save(script(self.program, self.name, inputs, is_grad_enabled=self.is_grad_enabled), path)
        return path


def name_of_forward(region: str, retrace: int = 0) -> str:
    """``region 3`` -> ``gradc_forward_3``; ``derivative of region 3`` -> ``gradc_forward_derivative_of_3``."""
    return f"gradc_forward_{_words(region)}" + (f"_retrace_{retrace}" if retrace else "")


def name_of_backward(region: str, segment: int, state: int) -> str:
    return f"gradc_backward_{_words(region)}_segment_{segment}_state_{state}"


def _words(region: str) -> str:
    return re.sub(r"\W+", "_", region.replace("region ", ""))
