"""gradc.testing, and the plug-in for pytest, in a suite of its own."""

import subprocess
import sys

import pytest
import torch

from gradc.errors import CheckError
from gradc.parity.differences import Kind
from gradc.testing import assert_parity

SUITE = """
import torch

def step(x):
    return (x.sin() * x.exp()).square().sum()

def test_step(assert_parity):
    report = assert_parity(step, torch.linspace(-1, 3, 1000, requires_grad=True))
    print(report.against, report.num_steps)
"""


def wrong(step):
    return lambda x: step(x) * 2


def rounding(step):
    return lambda x: torch.nextafter(step(x), torch.tensor(9.0))


def test_what_is_eagers_passes():
    assert assert_parity(torch.sin, torch.ones(3), steps=2).num_steps == 2


def test_what_is_wrong_raises_with_the_report():
    for may_round in (False, True):
        with pytest.raises(CheckError, match="off by 1.0e\\+00"):
            assert_parity(torch.sin, torch.ones(3), against=wrong, may_round=may_round)


def test_what_rounds_otherwise_may_pass():
    with pytest.raises(CheckError, match="rounds otherwise"):
        assert_parity(torch.sin, torch.ones(3), against=rounding)
    assert assert_parity(torch.sin, torch.ones(3), against=rounding, may_round=True).kind is Kind.ROUNDED


def test_what_proves_nothing_raises():
    with pytest.raises(CheckError, match="This proves nothing:\n.*\nNothing was compiled"):
        assert_parity(lambda: 3)


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["gradc.pytest_plugin"]\n')
    (tmp_path / "test_mine.py").write_text(SUITE)

    def run(*options):
        command = [sys.executable, "-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", str(tmp_path), *options]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    return run


def test_the_fixture(suite):
    done = suite("--parity-steps", "2")
    assert done.returncode == 0 and "gradc 2" in done.stdout, done.stdout + done.stderr


def test_the_fixture_against_another_compiler(suite):
    done = suite("--parity-against", "inductor")
    assert done.returncode == 1 and "rounds otherwise" in done.stdout, done.stdout + done.stderr
    assert suite("--parity-against", "inductor", "--parity-may-round").returncode == 0
