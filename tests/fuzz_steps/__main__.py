"""A differential fuzzer of whole training steps: random models, losses, optimizers and what happens between their steps.

    python -m tests.fuzz_steps --programs 500 --seed 0 --jobs 2
    python -m tests.fuzz_steps --show 17 --seed 0          print one program and its verdict

After each step loss, gradients, parameters, buffers, the optimizer's state and the generators are eager's, bit by bit.
A wrong program is shrunk and printed as a file that runs, one for each kind of difference and process. Ends with 1 if there was
any, a step that ran nothing compiled and counted nothing, a crash or a hang.
"""

from __future__ import annotations

import dataclasses
import sys

from tests.fuzz_driver import main
from tests.fuzz_python.__main__ import FUZZER as FUZZER_OF_PYTHON
from tests.fuzz_steps.generate import generate

FUZZER = dataclasses.replace(
    FUZZER_OF_PYTHON,
    module="tests.fuzz_steps",
    about="A differential fuzzer of whole training steps, eager against gradc.",
    generate=lambda options, number: generate(options.seed, number),
)

if __name__ == "__main__":
    sys.exit(main(FUZZER))
