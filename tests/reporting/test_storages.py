"""The memory of tensors: when it came, when it went, and that looking keeps nothing alive."""

import torch

from gradc.reporting.storages import Storages


def test_memory_goes_when_its_last_tensor_does():
    storages = Storages()
    x = torch.ones(4)
    storages.note(0, [], [x])
    view = x[1:]
    del x
    storages.note(1, [view], [])
    (block,) = storages.blocks
    assert (block.num_bytes, block.first, block.is_made, block.end) == (16, 0, True, None)
    del view
    storages.note(2, [], [])
    assert block.end == 2 and [block.is_alive(call) for call in (-1, 0, 1, 2)] == [False, True, True, False]


def test_what_was_there_before_is_not_made():
    storages, x = Storages(), torch.ones(4)
    storages.note(0, [x], [x.add_(1)])
    assert [block.is_made for block in storages.blocks] == [False]


def test_views_share_their_memory_and_the_next_tensor_at_the_address_does_not():
    storages = Storages()
    for call in range(3):
        x = torch.ones(4)
        storages.note(call, [], [x, x.view(2, 2)])
        del x
    assert [(block.first, block.end) for block in storages.blocks] == [(0, 1), (1, 2), (2, None)]


def test_what_has_no_memory_of_its_own_is_passed_over():
    storages = Storages()
    assert storages.block_of(torch.eye(3).to_sparse()) is None and storages.blocks == []
