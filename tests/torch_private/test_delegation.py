"""``value = yield from generator`` in compiled code: the value is what the generator returns, as in eager. It was None."""

import pytest
import torch

import gradc
from gradc.bits import same_bits


def doubled(x):
    y = x * 2
    yield y
    return y + 1


def at_once(x):
    return x * 3
    yield


class Own:
    """An iterator that ends with a value."""

    def __init__(self, x):
        self.x, self.num_left = x, 2

    def __iter__(self):
        return self

    def __next__(self):
        if self.num_left == 0:
            raise StopIteration(self.x * 5)
        self.num_left -= 1
        return self.x + self.num_left


def caught(x):
    try:
        yield x
    except ValueError:
        yield x * 7
    return x * 9


@pytest.mark.parametrize("inner", [doubled, at_once, Own, caught, lambda x: [x, x]])
def test_what_it_returns(inner):
    def delegate(x):
        value = yield from inner(x)
        yield x if value is None else value

    def nested(x):
        yield (yield from delegate(x))

    def step(x):
        return [each for each in (*delegate(x), *nested(x)) if each is not None]

    gradc.reset()
    x = torch.linspace(-1, 1, 4)
    got, eager = gradc.compile(step)(x), step(x)
    assert len(got) == len(eager) and all(map(same_bits, got, eager))


def test_an_error_of_before_is_not_taken_for_its_value():
    def ends_with(value):
        yield 0
        return value

    def delegate(x):
        try:
            raise StopIteration(x)
        except StopIteration as error:
            kept = error.value
        value = yield from ends_with(x * 2)
        value = value + (yield from ends_with(kept))
        yield value

    def step(x):
        return list(delegate(x))[-1]

    gradc.reset()
    x = torch.linspace(-1, 1, 4)
    assert same_bits(gradc.compile(step)(x), step(x))
