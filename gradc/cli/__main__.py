"""``python -m gradc.cli``."""

import sys

from gradc.cli import main

sys.exit(main())
