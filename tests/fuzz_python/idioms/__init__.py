"""The idioms that programs are made of, by topic: each a few lines of Python as people write it around tensors.

    IDIOMS: all of them

An idiom is a title, ``## so``, and lines with places to fill, which tests.fuzz_python.fill lists. What stands above a line
``--`` goes to the top of the program's module, what stands below into the function.
"""

from __future__ import annotations

from tests.fuzz_python.fill import Idiom, parse
from tests.fuzz_python.idioms import (
    between,
    containers,
    control,
    effects,
    everyday,
    functions,
    mixtures,
    modules,
    objects,
    tensors,
)

IDIOMS: tuple[Idiom, ...] = tuple(
    idiom
    for topic in (between, containers, control, effects, everyday, functions, mixtures, modules, objects, tensors)
    for idiom in parse(topic.IDIOMS)
)
