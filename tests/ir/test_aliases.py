"""What is a view of what, and what shares memory, by the calls alone."""

import torch

from gradc.ir.aliases import Aliases, Lifetimes
from tests.ir.build import recorded

X = torch.arange(4.0).reshape(2, 2)


def named(function, *inputs):
    """The Aliases of what ``function`` calls, the names of the slots, and the slots by name."""
    program = recorded(function, *inputs)
    return Aliases(program.instructions), program, {slot.name: number for number, slot in enumerate(program.slots)}


def family(found, program, slot):
    return {program.slots[other].name for other in found.family_of(slot)}


def test_views_of_views_are_one_family():
    aliases, program, slots = named(lambda x: (x.t().view(-1, 1, 2), x.sin()), torch.ones(2, 2).t())
    assert family(aliases, program, slots["x"]) == family(aliases, program, slots["view"]) == {"x", "t", "view"}
    assert family(aliases, program, slots["sin"]) == {"sin"}
    root, steps = aliases.views_to(slots["view"])
    assert root == slots["x"] and [program.slots[slot].name for _, slot in steps] == ["t", "view"]


def test_each_of_several_views_is_a_view():
    aliases, program, slots = named(lambda x: tuple(x.unbind()), X)
    assert family(aliases, program, slots["x"]) == {"x", "unbind", "unbind_1"}
    assert aliases.views_to(slots["unbind_1"])[0] == slots["x"]


def test_a_hidden_view_shares_memory_and_is_no_view():
    aliases, program, slots = named(lambda x: (torch.ops.aten._unsafe_view(x, [4]),), X)
    assert family(aliases, program, slots["x"]) == {"x", "unsafe_view"}
    assert aliases.views_to(slots["unsafe_view"]) == (slots["unsafe_view"], [])


def test_an_op_in_place_makes_no_view():
    aliases, _, slots = named(lambda x: (x.sin().mul_(2),), X)
    assert not aliases.view_calls and aliases.family_of(slots["sin"]) == {slots["sin"]}


def test_what_is_seen_to_share_memory_is_one_family_with_its_views():
    aliases, program, slots = named(lambda x, y: (x.view(4), y.t()), X, X)
    aliases.share(slots["y"], slots["x"])
    assert family(aliases, program, slots["t"]) == {"x", "y", "view", "t"}
    assert aliases.views_to(slots["t"])[0] == slots["y"]


def test_a_detached_handle_has_a_source():
    aliases, _, slots = named(lambda x: (x.detach().detach(), x.view(4)), X)
    assert aliases.source_of(slots["detach_1"]) == slots["x"] and aliases.source_of(slots["view"]) == slots["view"]


def test_memory_that_another_tensor_was_given_is_read_as_long_as_that_is():
    def step(x, y):
        product, other = x.mm(x), torch.empty(0)
        other.set_(product)
        return product + y, other.sin()

    program = recorded(step, X, X)
    total = next(index for index, call in enumerate(program.instructions) if call.op is torch.ops.aten.add.Tensor)
    product = program.instructions[0].outs[0]
    assert not Lifetimes(program).is_free_after(product, total)
    assert Lifetimes(program).is_free_after(product, total + 1)
