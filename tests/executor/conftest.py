"""A custom op whose kernel a test writes in Python; tests that run with one thread, and with two."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def python_op():
    library = torch.library.Library("gradc_test", "DEF")
    library.define("call(Tensor x) -> Tensor")
    body = {}
    library.impl("call", lambda x: body["call"](x), "CompositeExplicitAutograd")
    yield body
    library._destroy()


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)
