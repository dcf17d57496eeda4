"""``python -m gradc``: the command line, for launchers that take a module, such as ``torchrun -m gradc run train.py``."""

import sys

from gradc.cli import main

sys.exit(main())
