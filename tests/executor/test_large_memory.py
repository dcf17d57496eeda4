"""Large tensors that plans make lie on memory that stays mapped, within what is needed; others on torch's own."""

from __future__ import annotations

import os
import pickle
import resource
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import gradc
from gradc import executor, native
from gradc.bits import same_bits
from tests.executor.agree import allocations, capture
from tests.threads import in_threads

pytestmark = pytest.mark.skipif(native.status().name != "native", reason=str(native.status()))
MEGABYTE = 1 << 20


@pytest.fixture(autouse=True)
def _nothing_kept():
    release()
    yield
    release()


def release() -> int:
    return native.extension.release_large_memory()


def numbers(megabytes: int) -> Tensor:
    return torch.randn(megabytes * MEGABYTE // 4)


def lowered(function: Callable[[Tensor], object], example: Tensor) -> Callable[[Tensor], list[Tensor]]:
    run = executor.lower(capture(function, [example]))
    return lambda x: run([x])


def num_faults(call: Callable[[], object]) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    call()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_a_step_has_no_pages_made_anew():
    x = numbers(40)  # more than glibc ever keeps
    run = lowered(lambda x: x.exp().sum() + x.log_softmax(0).sum(), x)
    for _ in range(3):
        run(x)
    pages = 40 * MEGABYTE // resource.getpagesize()
    assert num_faults(lambda: torch.empty_like(x).fill_(1)) > pages // 600, "eager's, of large pages at most"
    assert min(num_faults(lambda: run(x)) for _ in range(5)) < pages // 600


def test_what_is_mapped_is_at_most_a_quarter_more_than_was_needed_at_once():
    sizes = [40, 33, 27, 22, 18, 15]  # each too large for the next
    for size in sizes:
        x = numbers(size)
        (out,) = lowered(torch.exp, x)(x)
        del out
    assert 15 * MEGABYTE <= release() <= 50 * MEGABYTE
    assert release() == 0


def test_reset_gives_all_back():
    x = numbers(4)
    lowered(torch.exp, x)(x)
    gradc.reset()
    assert release() == 0


def test_what_others_make_is_torchs_own():
    x = numbers(4)
    lowered(torch.exp, x)(x)
    assert release() >= 4 * MEGABYTE
    del x
    x = torch.randn(MEGABYTE).exp()
    del x
    assert release() == 0


@pytest.mark.parametrize("size", [4, 40])
def test_a_result_is_a_tensor_like_others(size):
    x = numbers(size)
    run = lowered(torch.exp, x)
    expected = x.exp()
    (out,) = run(x)
    assert same_bits(out, expected)
    seen = out.numpy()
    del out
    (again,) = run(x)
    assert (seen == expected.numpy()).all(), "its memory is NumPy's, too"
    assert same_bits(pickle.loads(pickle.dumps(again)), expected)
    assert same_bits(again.share_memory_(), expected)
    (again,) = run(x)
    again.resize_(2 * len(x)).resize_(len(x))
    assert same_bits(again, expected)
    copy = torch._lazy_clone(again)  # until one of them is written to
    again.zero_()
    assert same_bits(copy, expected)


def test_any_thread_frees():
    x = numbers(4)
    held = lowered(torch.exp, x)(x)
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert release() >= 4 * MEGABYTE


def test_threads_have_memory_of_their_own_at_a_time():
    x = numbers(2)
    run, expected = lowered(lambda x: x.exp().neg(), x), x.exp().neg()

    def work() -> None:
        for _ in range(30):
            (out,) = run(x)
            assert same_bits(out, expected)

    in_threads(4, work)


def test_a_child_of_the_process_frees_what_it_was_given():
    x = numbers(4)
    held = lowered(torch.exp, x)(x)
    child = os.fork()
    if child == 0:
        held.clear()
        os._exit(0 if release() >= 4 * MEGABYTE else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert same_bits(held[0], x.exp())


def test_profiler_sees_it():
    x = numbers(4)
    run = lowered(torch.exp, x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run(x)
    sizes = allocations(profile)
    assert 4 * MEGABYTE in sizes and -4 * MEGABYTE in sizes, sizes
