"""Dynamo finds gradc's backend at each frame: in one step, and it is the same one, whatever else asks for it."""

import pytest
import torch
from torch._dynamo.eval_frame import innermost_backend

import gradc
from gradc import native
from gradc.bits import same_bits
from gradc.frontend.dynamo import Backend
from gradc.options import DEFAULTS


@pytest.fixture(autouse=True)
def patched():
    gradc.patches().apply()


def callback_of(backend):
    return torch._dynamo.optimize(backend).callback


@pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))
def test_the_backend_is_one_step_behind_the_callback():
    backend = Backend(DEFAULTS)
    callback = callback_of(backend)
    assert callback._torchdynamo_orig_backend is backend is innermost_backend(callback)
    assert not hasattr(backend, "_torchdynamo_orig_backend")
    with pytest.raises(AttributeError, match="'Backend' object has no attribute 'another'"):
        _ = backend.another


def test_a_callback_has_all_that_the_wrapper_around_the_compiler_has():
    """Dynamo's own code, and other patches, look into it."""
    callback = callback_of(Backend(DEFAULTS))
    wrapper = callback.__call__.__self__
    assert isinstance(callback, type(wrapper)) and callback.hooks is wrapper.hooks
    callback.hooks = hooks = object()
    assert wrapper.hooks is hooks


def test_other_backends_keep_the_way_that_they_have():
    callback = callback_of(lambda graph, inputs: graph)
    assert type(callback) is type(callback.__call__.__self__)
    assert callback._torchdynamo_orig_backend is not innermost_backend(callback)


def test_a_stance_that_compiles_at_the_second_call_goes_by_the_wrappers():
    function = gradc.compile(lambda x: x.sin() * 2)
    gradc.reset()
    with torch.compiler.set_stance("eager_then_compile"):
        for size in (3, 4, 4):
            x = torch.randn(size)
            assert same_bits(function(x), x.sin() * 2)
    assert gradc.counters["stats"]["unique_graphs"] >= 1
