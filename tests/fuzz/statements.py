"""The table of statements from which bodies are made: how each kind is written over the variables there are.

    TABLE, WITH_GRADIENTS, WITH_REPEATS: [(weight, writer)]
    writer: Pool -> text of an expression or a statement, or None if nothing fits

A writer returns an expression (it becomes ``t7 = ...``) or, if it starts with "!", a statement as it is.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import torch

Writer = Callable[["Pool"], str | None]
Table = list[tuple[int, Writer]]


@dataclasses.dataclass
class Pool:
    """The variables so far, with the values they have in an eager run; the source of chance; what statements there are.

    ``expressions`` are those that made the variables.
    """

    rng: random.Random
    values: dict[str, torch.Tensor]
    inputs: tuple[str, ...]
    table: Table
    expressions: list[str] = dataclasses.field(default_factory=list)

    def pick(self, fits: Callable[[torch.Tensor], bool] = lambda t: True, *, fresh: bool = False) -> str | None:
        """The name of a variable that fits, recent ones more often; with ``fresh`` no input."""
        names = [n for n, v in self.values.items() if fits(v) and not (fresh and n in self.inputs)]
        if not names:
            return None
        weights = [1 + position for position in range(len(names))]
        return self.rng.choices(names, weights)[0]

    def floating(self, min_dim: int = 0, **options: bool) -> str | None:
        return self.pick(lambda t: t.is_floating_point() and t.dim() >= min_dim and t.numel() > 0, **options)

    def like(self, name: str) -> str | None:
        """A floating variable that broadcasts to the shape of ``name``."""
        shape = self.values[name].shape

        def fits(t: torch.Tensor) -> bool:
            try:
                return t.is_floating_point() and torch.broadcast_shapes(t.shape, shape) == shape
            except RuntimeError:
                return False

        return self.pick(fits)

    def add(self, written: str | None, space: dict[str, Any], is_kept: Callable[[torch.Tensor], bool]) -> str | None:
        """What a writer wrote, as a statement that runs in ``space``; None if it raises, or makes a tensor that is not kept."""
        if not written:
            return None
        name = f"t{len(self.values)}"
        text = written[1:] if written.startswith("!") else f"{name} = {written}"
        local = dict(self.values)
        try:
            exec(text, {**space, **local}, local)
        except Exception:
            return None
        made = local.get(name)
        if made is not None:
            if not is_kept(made):
                return None
            self.values[name] = made
            self.expressions.append(written)
        return text

    def dim(self, name: str) -> int:
        return self.rng.randrange(self.values[name].dim())

    def size(self, name: str, dim: int) -> int:
        return self.values[name].shape[dim]


def unary(pool: Pool) -> str | None:
    a = pool.floating()
    forms = (
        "torch.sin({a})", "torch.tanh({a})", "torch.sigmoid({a})", "{a}.relu()", "{a}.square()", "-{a}",
        "{a}.abs()", "F.gelu({a})", "F.silu({a})", "F.softplus({a})", "{a}.tanh().exp()",
        "torch.sqrt({a}.abs() + 1)", "{a}.clamp(-1, 1)", "torch.log1p({a}.abs())", "{a}.sin().acos()",
        "{a} * 0.5 + 1", "{a}.erf()", "{a}.reciprocal().clamp(-2, 2)", "{a}.nan_to_num()",
        "F.leaky_relu({a}, 0.1)", "{a}.sign() * {a}", "2 ** {a}.tanh()", "F.elu({a})", "{a}.frac()",
    )  # fmt: skip
    return a and pool.rng.choice(forms).format(a=a)


def binary(pool: Pool) -> str | None:
    if not (a := pool.floating()) or not (b := pool.like(a)):
        return None
    forms = (
        "{a} + {b}", "{a} - {b}", "{a} * {b}", "torch.maximum({a}, {b})", "torch.where({a} > {b}, {a}, {b})",
        "{a} / ({b}.abs() + 1)", "torch.atan2({a}, {b})", "torch.hypot({a}, {b})",
        "{a}.mul({b}).add({a}, alpha=2)", "F.smooth_l1_loss({a}, {b}.expand_as({a}).to({a}.dtype))",
        "torch.lerp({a}.double(), {b}.double(), 0.3)",
        "torch.addcmul({a}.float(), {b}.float(), {a}.float(), value=0.5)", "Product.apply({a}, {b})",
        "{a}.tanh() ** 2 + {b}", "F.mse_loss({a}, {b}.expand_as({a}).to({a}.dtype), reduction='none')",
    )  # fmt: skip
    return pool.rng.choice(forms).format(a=a, b=b)


def matrix(pool: Pool) -> str | None:
    a = pool.floating(2)
    if a is None:
        return None
    left = pool.values[a]
    b = pool.pick(lambda t: t.is_floating_point() and t.dim() == 2 and t.shape[0] == left.shape[-1])
    c = pool.pick(lambda t: t.is_floating_point() and t.dim() == 2 and t.shape[1] == left.shape[-1])
    forms = ["torch.matmul({a}, {a}.mT)", "torch.einsum('...ij,...kj->...ik', {a}, {a})"]
    forms += ["{a} @ {b}.to({a}.dtype)", "torch.matmul({a}, {b}.to({a}.dtype)).relu()"] * bool(b) * 2
    forms += ["F.linear({a}, {c}.to({a}.dtype))", "{a} @ {c}.to({a}.dtype).t()"] * bool(c) * 2
    return pool.rng.choice(forms).format(a=a, b=b, c=c)


def mixed(pool: Pool) -> str | None:
    """Products whose dtypes agree only under autocast."""
    a = pool.floating(2)
    b = a and pool.pick(lambda t: t.is_floating_point() and t.dim() == 2 and t.shape[0] == pool.values[a].shape[-1])
    return f"{a} @ {b}" if b else None


def reduction(pool: Pool) -> str | None:
    a = pool.floating(1)
    if a is None:
        return None
    forms = (
        "{a}.sum({d})", "{a}.mean({d}, keepdim=True)", "{a}.amax({d})", "{a}.float().var({d}, correction=0)",
        "{a}.sum()", "{a}.max({d}).values", "{a}.prod({d})", "{a}.float().norm(dim={d})", "{a}.logsumexp({d})",
        "{a}.cumsum({d})", "{a}.softmax({d})", "F.layer_norm({a}, {a}.shape[-1:])", "{a}.sort({d}).values",
        "{a}.log_softmax({d})", "{a}.median({d}).values", "{a}.mean()", "{a}.cumprod({d})",
        "{a}.topk(1, {d}).values", "{a}.float().std()", "F.normalize({a}.float(), dim={d})", "{a}.roll(1, {d})",
        "{a}.flip({d})", "F.pad({a}, (1, 0))", "{a}.diff(dim={d})",
    )  # fmt: skip
    return pool.rng.choice(forms).format(a=a, d=pool.dim(a))


def view(pool: Pool) -> str | None:
    a = pool.pick(lambda t: t.dim() >= 1 and t.numel() > 0)
    if a is None:
        return None
    d = pool.dim(a)
    i = pool.rng.randrange(pool.size(a, d))
    forms = [
        "{a}.view(-1)", "{a}.reshape(-1)", "{a}.select({d}, {i})", "{a}.narrow({d}, {i}, 1)",
        "{a}.unsqueeze({d})", "{a}[{first}]", "{a}.transpose(0, -1)", "{a}.unbind({d})[{i}]",
        "{a}.chunk(2, {d})[0]", "{a}.expand(2, *{a}.shape)", "{a}[..., ::2]", "{a}.flatten()", "{a}.squeeze()",
        "{a}.contiguous()", "{a}.detach()", "{a}.view_as({a})", "{a}.movedim(0, -1)", "{a}.split(1, {d})[{i}]",
        "{a}[..., 1:]", "{a}[None]", "{a}.as_strided({a}.shape, {a}.stride())", "{a}.clone()",
        "{a}.view({a}.shape[0], -1)", "{a}.unfold(0, 1, 1)",
    ]  # fmt: skip
    forms += ["{a}.diagonal()", "{a}.mT"] * (pool.values[a].dim() >= 2)
    first = pool.rng.randrange(pool.size(a, 0))
    return pool.rng.choice(forms).format(a=a, d=d, i=i, first=first)


def joining(pool: Pool) -> str | None:
    a = pool.floating(1)
    b = a and pool.pick(lambda t: t.shape == pool.values[a].shape and t.is_floating_point())
    forms = ("torch.cat([{a}, {b}], {d})", "torch.stack([{a}, {b}, {a}], {d})", "torch.cat([{a}, {a}])")
    return b and pool.rng.choice(forms).format(a=a, b=b, d=pool.dim(a or ""))


def indexing(pool: Pool) -> str | None:
    a = pool.floating(1)
    i = pool.pick(lambda t: t.dtype is torch.int64 and t.dim() == 1)
    if a is None or i is None:
        return None
    n = pool.size(a, 0)
    forms = (
        "{a}[{i} % {n}]", "{a}.index_select(0, {i} % {n})", "{a}.index_add(0, {i} % {n}, {a}[{i} % {n}])",
        "F.embedding({i} % {n}, {a}.view({n}, -1))", "{a}.masked_fill({a} > 0.5, 0.25)",
        "torch.gather({a}, 0, {a}.argsort(0))", "torch.zeros_like({a}).scatter_add(0, {a}.argsort(0), {a})",
        "{a}.masked_select({a} > 100).sum()",
    )  # fmt: skip
    return pool.rng.choice(forms).format(a=a, i=i, n=n)


def casting(pool: Pool) -> str | None:
    a = pool.floating()
    forms = (
        "{a}.to(torch.float64)", "{a}.bfloat16()", "{a}.float()", "{a}.half()", "{a}.type_as({b})", "{a}.to({a}.dtype)"
    )  # fmt: skip
    return a and pool.rng.choice(forms).format(a=a, b=pool.floating())


def in_place(pool: Pool) -> str | None:
    a = pool.floating(fresh=pool.rng.random() < 0.8)
    b = a and pool.like(a)
    if not a or not b:
        return None
    forms = [
        "{a}.mul_(0.5)", "{a}.add_({b})", "{a}.relu_()", "{a}.copy_({b})", "{a}.zero_()", "{a}.mul_({b})",
        "{a}.tanh_()", "{a}.masked_fill_({a} > 1, 0)", "{a}.sub_(0.25)", "{a}.clamp_(-1, 1)",
        "{a}.detach().mul_(1)", "{a}.neg_()",
    ]  # fmt: skip
    if pool.values[a].dim() >= 1 and pool.size(a, 0) > 1:
        forms += ["{a}[0].mul_(2)", "{a}[0] = {a}[1] * 2", "{a}[1:] += 1", "{a}[0] = 0.5", "{a}.view(-1)[1:].add_(0.5)"]
        forms += ["{a}[..., 0].add_(1)", "{a}.transpose(0, -1)[0].mul_(3)"]
    return "!" + pool.rng.choice(forms).format(a=a, b=b)


def random_op(pool: Pool) -> str | None:
    a = pool.floating()
    forms = (
        "F.dropout({a}, 0.4)", "torch.rand_like({a}) * {a}", "{a} + torch.randn(())",
        "torch.bernoulli({a}.detach().sigmoid()) * {a}", "F.dropout({a}.transpose(0, -1), 0.4)",
        "F.rrelu({a}, training=True)",
    )  # fmt: skip
    if a and pool.values[a].dim() == 0:
        forms = forms[:4]
    return a and pool.rng.choice(forms).format(a=a)


def function(pool: Pool) -> str | None:
    a, b = pool.floating(), pool.floating()
    forms = (
        "Shrink.apply({a})", "Sum.apply({a}, {b})", "TwoOutputs.apply({a})[0]", "sum(TwoOutputs.apply({a}))",
        "checkpoint(lambda t: torch.tanh(t).exp().sin(), {a}, use_reentrant=False)",
        "checkpoint(lambda t: F.dropout(t.sin(), 0.5) * 2, {a}, use_reentrant=False)",
    )  # fmt: skip
    return a and b and pool.rng.choice(forms).format(a=a, b=b)


def shape_use(pool: Pool) -> str | None:
    a = pool.floating(1)
    forms = (
        "{a} * {a}.shape[0]", "{a} / {a}.numel()", "{a}.new_zeros({a}.shape[0]).sum() + {a}",
        "{a} + torch.arange({a}.shape[-1])", "{a}.view({a}.shape[0], -1).sum(1)",
        "{a} if {a}.shape[0] > 2 else {a} * 2",
    )  # fmt: skip
    return a and pool.rng.choice(forms).format(a=a)


def side_effect(pool: Pool) -> str | None:
    a = pool.pick(lambda t: t.requires_grad, fresh=True)
    forms = ("!{a}.register_hook(doubling)", "!torch._dynamo.graph_break()", "!torch._dynamo.graph_break()")
    return a and pool.rng.choice(forms).format(a=a)


def inner_gradient(pool: Pool) -> str | None:
    a = pool.pick(lambda t: t.requires_grad and t.is_floating_point())
    b = pool.pick(lambda t: t.requires_grad and t.is_floating_point(), fresh=True)
    return a and b and f"torch.autograd.grad({b}.sin().sum(), {a}, create_graph=True, materialize_grads=True)[0]"


def inner_gradient_of_any_kind(pool: Pool) -> str | None:
    a, c = (pool.pick(lambda t: t.requires_grad and t.is_floating_point()) for _ in range(2))
    b = pool.pick(lambda t: t.requires_grad and t.is_floating_point(), fresh=True)
    forms = (
        "{b}.sin().sum(), {a}, create_graph=True", "{b}.sum(), {a}, create_graph=True",
        "{b}.square().sum(), {a}, retain_graph=True", "{b}, {a}, torch.ones_like({b}), create_graph=True",
        "outputs={b}, inputs={a}, grad_outputs={b}, create_graph=True",
        "{b}.tanh().sum(), ({a}, {c}), create_graph=True, allow_unused=True", "{b}.cos().sum(), {a}",
        "({b}.sum(), {c}.square().sum()), ({a}, {c}), create_graph=True", "[{b}, {c}], [{a}], [{b}, {c}], True",
        "{b}.sin().sum(), {a}, create_graph=True, materialize_grads=True",
    )  # fmt: skip
    return a and b and f"torch.autograd.grad({pool.rng.choice(forms).format(a=a, b=b, c=c)})[0]"


TABLE: Table = [
    (10, unary),
    (10, binary),
    (6, matrix),
    (2, mixed),
    (7, reduction),
    (10, view),
    (2, joining),
    (3, indexing),
    (3, casting),
    (7, in_place),
    (2, random_op),
    (2, function),
    (2, shape_use),
    (1, side_effect),
    (1, inner_gradient),
]

# With a torch.autograd.grad in every few statements.
WITH_GRADIENTS: Table = [*TABLE, (20, inner_gradient_of_any_kind)]


def again(pool: Pool) -> str | None:
    """An expression that was there before; what it reads may have been written into since."""
    return pool.rng.choice(pool.expressions) if pool.expressions else None


# Every other expression for the second time, and a gradient now and then: its formulas repeat each other.
WITH_REPEATS: Table = [*WITH_GRADIENTS, (sum(weight for weight, _ in WITH_GRADIENTS), again)]
