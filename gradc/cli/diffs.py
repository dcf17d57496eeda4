"""``gradc report --diff A B``."""

from __future__ import annotations

import argparse

from gradc.reporting.compare import compare


def report(options: argparse.Namespace) -> int:
    print(compare(*options.diff))
    return 0
