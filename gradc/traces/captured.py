"""One captured program, with its name: it prints itself, and saves itself as Python that runs without gradc.

gradc_forward_3                        the forward of region 3
gradc_forward_3_retrace_1              the same, made again with other numbers for its sizes or floats
gradc_backward_3_segment_0_state_1     the backward of its first segment, in the second state that it was compiled for
gradc_compiled_autograd_0              a piece of a backward pass that compiled autograd captured; all, if no node runs live
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


@dataclasses.dataclass(frozen=True)
class Origin:
    """What a Program is of.

    Attributes:
        region: its name; "" for a piece of a backward pass that compiled autograd captured.
        segment: the number of the segment whose backward it is; None for a forward, or a piece.
        number: how many there were before of the same: retraces of a forward, states of a backward, pieces.
        reason: why a backward was compiled, or a pass captured, again; "" if it was not.
        compilation: of Dynamo's, that the region comes from.
        is_grad_enabled: the grad mode in which it runs.
    """

    region: str
    segment: int | None
    number: int
    reason: str = ""
    compilation: Compilation | None = None
    is_grad_enabled: bool = False

    @property
    def name(self) -> str:
        """See the module's docstring. ``derivative of region 3`` is ``derivative_of_3``."""
        if not self.region:
            return f"gradc_compiled_autograd_{self.number}"
        words = re.sub(r"\W+", "_", self.region.replace("region ", ""))
        if self.segment is not None:
            return f"gradc_backward_{words}_segment_{self.segment}_state_{self.number}"
        return f"gradc_forward_{words}" + (f"_retrace_{self.number}" if self.number else "")


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


def captured_program(program: Program, origin: Origin) -> CapturedProgram:
    """Without inputs."""
    return CapturedProgram(origin.name, program, None, origin.compilation, origin.is_grad_enabled)
