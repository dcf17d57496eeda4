"""Operators that warn, in compiled code: as often as in eager."""

import warnings

import pytest
import torch

import gradc


@pytest.fixture
def warns_always():
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@pytest.mark.parametrize("name", ["plain", "vjp", "grad"])
def test_a_window_that_is_missing_is_told_at_each_call(name, warns_always):
    """Under ``torch.set_warn_always`` the graph said nothing: torch's function for fake tensors does not."""

    def energy(x):
        return torch.stft(x, 16, return_complex=True).abs().sum()

    function = {
        "plain": energy,
        "vjp": lambda x: torch.func.vjp(energy, x)[1](torch.ones(()))[0],
        "grad": torch.func.grad(energy),
    }[name]
    told = []
    for run in (function, *[gradc.compile(function)] * 3):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            run(torch.randn(2, 64))
        told.append(sum("window was not provided" in str(each.message) for each in warned))
    assert told == [1] * 4
