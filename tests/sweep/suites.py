"""What is swept: named samples of torch's own test material.

    SUITES: name -> function (Choice) -> iterator of Subject        a Subject holds the samples of one op or module

Suites: ops (op_db), views (its ops in place, on a row of what the function has calculated, which is returned, alone and with
what is made of the row), transforms (its ops under torch.func's), modules (module_db, train and eval), functions
(autograd_function_db), custom (custom_op_db), hops (hop_db). A sample is a function, called with ``compile``, of inputs that
are made anew for every run.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

# These return memory that nobody wrote; only dtype, shape and strides can be compared.
UNINITIALISED = frozenset(
    (
        *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
        *("resize_", "resize_as_"),
    )
)


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which samples: ``num_samples`` of each op, of ``dtype``, on ``device``, differentiated ``order`` times."""

    dtype: torch.dtype = torch.float32
    order: int = 1
    num_samples: int = 2
    device: str = "cpu"

    @property
    def device_type(self) -> str:
        return self.device.partition(":")[0]


@dataclasses.dataclass(frozen=True)
class Sample:
    """One call of one op.

    Attributes:
        function: what is compiled: (*arguments) -> outputs.
        arguments: a pytree; ``fresh`` copies it.
        finish: what the op's author applies to the outputs before differentiating them.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    finish: Callable[[Any], Any] = lambda output: output

    def fresh(self) -> tuple[Any, ...]:
        """Copies of the arguments, same strides, as leaves."""
        return pytree.tree_map_only(torch.Tensor, _copy_leaf, self.arguments)


@dataclasses.dataclass(frozen=True)
class Subject:
    """One op or module and how to make its samples; they may raise, if the op does not support the dtype."""

    name: str
    samples: Callable[[], list[Sample]]
    skip: str = ""


def _copy_leaf(tensor: torch.Tensor) -> torch.Tensor:
    detached = tensor.detach()
    is_plain = tensor.layout is torch.strided and not tensor.is_nested
    return (copy.deepcopy(detached) if is_plain else detached.clone()).requires_grad_(tensor.requires_grad)


SamplesOf = Callable[[Any, Any], list[Sample]]  # (op, its author's sample) -> what is called


def _ops(database: list[Any], samples_of: SamplesOf | None = None) -> Callable[[Choice], Iterator[Subject]]:
    """``samples_of``: the op itself, if not said."""

    def subjects(choice: Choice) -> Iterator[Subject]:
        for op in database:
            name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
            skip = "" if op.supports_dtype(choice.dtype, choice.device_type) else "the op does not support the dtype"
            yield Subject(name, lambda op=op: _op_samples(op, choice, samples_of or _op_itself), skip)

    return subjects


def _op_samples(op: Any, choice: Choice, samples_of: SamplesOf) -> list[Sample]:
    can_grad = op.supports_autograd and choice.dtype in op.supported_backward_dtypes(choice.device_type)
    if choice.order > 1:
        can_grad = can_grad and op.supports_gradgrad
    made = op.sample_inputs(choice.device, choice.dtype, requires_grad=can_grad)
    return [called for sample in itertools.islice(made, choice.num_samples) for called in samples_of(op, sample)]


def _op_itself(op: Any, sample: Any) -> list[Sample]:
    function = op.op

    def call(input: Any, args: Any, kwargs: Any) -> Any:
        return function(input, *args, **kwargs)

    return [Sample(call, (sample.input, sample.args, sample.kwargs), sample.output_process_fn_grad)]


def op_db() -> list[Any]:
    from torch.testing._internal import common_methods_invocations as methods

    # So that Dynamo captures random ops: the original sets the seed inside, which breaks the graph.
    methods.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return list(methods.op_db)


def _op_db(choice: Choice, samples_of: SamplesOf | None = None) -> Iterator[Subject]:
    return _ops(op_db(), samples_of)(choice)


def _ops_under_transforms(choice: Choice) -> Iterator[Subject]:
    from tests.sweep.transforms import transformed

    return _op_db(dataclasses.replace(choice, num_samples=1), transformed)  # seven functions are made of each


def _ops_on_views(choice: Choice) -> Iterator[Subject]:
    from torch.testing._internal.common_methods_invocations import op_db

    return _ops([op for op in op_db if op.inplace_variant is not None], _written_rows)(choice)


def _written_rows(op: Any, sample: Any) -> list[Sample]:
    function = op.inplace_variant

    def written(rows: torch.Tensor, args: Any, kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        whole = rows * 1
        row = whole[1]
        function(row, *args, **kwargs)
        return whole, row

    def alone(*arguments: Any) -> Any:
        whole, row = written(*arguments)
        row * row  # used for nothing: the row's node dies with it
        return whole * whole

    def with_the_row(*arguments: Any) -> Any:
        whole, row = written(*arguments)
        return whole * whole, row * row

    rows = torch.stack([sample.input.detach()] * 3).requires_grad_(sample.input.requires_grad)
    return [Sample(call, (rows, sample.args, sample.kwargs)) for call in (alone, with_the_row)]


def _autograd_function_db(choice: Choice) -> Iterator[Subject]:
    from torch.testing._internal.autograd_function_db import autograd_function_db

    return _ops(autograd_function_db)(choice)


def _custom_op_db(choice: Choice) -> Iterator[Subject]:
    from torch.testing._internal.custom_op_db import custom_op_db

    return _ops(custom_op_db)(choice)


def _hop_db(choice: Choice) -> Iterator[Subject]:
    from torch.testing._internal.hop_db import hop_db

    return _ops(hop_db)(choice)


def _module_db(choice: Choice) -> Iterator[Subject]:
    from torch.testing._internal.common_modules import module_db

    for info, training in itertools.product(module_db, (True, False)):
        name = f"{info.name} {'train' if training else 'eval'}"
        skip = "" if choice.dtype in info.supported_dtypes(choice.device_type) else "the module does not support the dtype"
        yield Subject(name, lambda info=info, training=training: _module_samples(info, choice, training), skip)


def _module_samples(info: Any, choice: Choice, training: bool) -> list[Sample]:
    made = info.module_inputs_func(
        info, device=choice.device, dtype=choice.dtype, requires_grad=True, training=training
    )
    return [_module_sample(info, sample, choice, training) for sample in made[: choice.num_samples]]


def _module_sample(info: Any, sample: Any, choice: Choice, training: bool) -> Sample:
    arguments = sample.constructor_input
    module = info.module_cls(*arguments.args, **arguments.kwargs).to(choice.device, choice.dtype).train(training)
    forward = sample.forward_input
    if isinstance(module, torch.nn.modules.lazy.LazyModuleMixin):
        module(*forward.args, **forward.kwargs)  # creates the parameters
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def call(state: dict[str, torch.Tensor], args: Any, kwargs: Any) -> Any:
        return torch.func.functional_call(module, state, args, kwargs)

    return Sample(call, (state, forward.args, forward.kwargs))


SUITES: dict[str, Callable[[Choice], Iterator[Subject]]] = {
    "ops": _op_db,
    "views": _ops_on_views,
    "transforms": _ops_under_transforms,
    "modules": _module_db,
    "functions": _autograd_function_db,
    "custom": _custom_op_db,
    "hops": _hop_db,
}
