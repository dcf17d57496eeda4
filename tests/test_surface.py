"""The public surface, fetched when it is asked for: what is in it, and that importing it costs next to nothing."""

import ast
import itertools
import os
import pathlib
import subprocess
import sys

import pytest

import gradc

SOURCE = ast.parse(pathlib.Path(gradc.__file__).read_text())
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith("GRADC_")}
PROGRAM = """
import resource, sys, time, torch
known, used, begun = {*sys.modules}, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
import gradc
print(time.perf_counter() - begun, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used) / 1024)
print([name for name in {*sys.modules} - known if name.startswith("torch")])
gradc.config.compiled_autograd = True
w = torch.ones(2, requires_grad=True)
w.sin().sum().backward()
print(gradc.counters["compiled_autograd"]["captures"])
"""


def test_what_type_checkers_see_is_what_there_is():
    (block,) = (node for node in SOURCE.body if isinstance(node, ast.If))
    seen = {name.name: node.module for node in ast.walk(block) if isinstance(node, ast.ImportFrom) for name in node.names}
    assert {name: home for name, home in seen.items() if home != "gradc"} == gradc._HOMES
    always = {"config", "ConfigError", "FallbackError", "GradcError"}
    assert sorted({*seen, *always}) == sorted(gradc.__all__)


def test_dir_is_the_surface():
    assert dir(gradc) == sorted([*gradc.__all__, "__version__"])
    assert all(getattr(gradc, name) is not None for name in gradc.__all__)


def test_a_module_is_found_under_its_name_and_nothing_else_is():
    assert gradc.bits.same_bits(1, 1)
    with pytest.raises(AttributeError, match="module 'gradc' has no attribute 'compiles'. It has: ConfigError, "):
        gradc.compiles  # noqa: B018


def test_importing_it_costs_little_and_a_setting_is_enough_to_capture():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=PLAIN)
    cost, modules, captures = done.stdout.splitlines()
    seconds, megabytes = map(float, cost.split())
    assert seconds < 0.7 and megabytes < 45 and modules == "[]" and captures == "1", done.stdout + done.stderr


def test_help_is_there_at_once():
    """Seconds of the processor, the least of three: the machine may be busy."""
    times = [os.times()]
    for _ in range(3):
        subprocess.run([sys.executable, "-m", "gradc", "--help"], capture_output=True, check=True, env=PLAIN)
        times.append(os.times())
    taken = [b.children_user + b.children_system - a.children_user - a.children_system for a, b in itertools.pairwise(times)]
    assert min(taken) < 0.3, taken


def test_importing_it_alone_does_without_torch():
    program = "import gradc, sys; print('torch' in sys.modules, gradc.__version__)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=PLAIN).stdout == "False 0.1.0\n"
