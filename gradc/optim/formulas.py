"""The update of each optimizer as data: the calls that torch's own step makes on each parameter, in their order.

    adam, nadam, radam, adamax, sgd, rmsprop, adagrad, adadelta: choices -> Formula
    foreach_nadam, foreach_radam, foreach_sgd, ...: choices -> Formula, where torch updates lists of tensors by other calls

A Formula names its operands (the parameter, its gradient, its state) and lists operations on them; ``numbers`` says what each
named number is, given the settings of a parameter group and the step count, as torch's step computes it in Python: there,
here and in C++ (``arithmetic.py``) ``beta ** step`` rounds alike. Source of each: ``_single_tensor_*`` in torch.optim, and of
what is named foreach ``_multi_tensor_*``, which is torch's choice on CUDA. Where both make the same calls there is one formula.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

Settings = dict[str, Any]  # the keyword arguments of torch.optim's functional form: lr, weight_decay, ...; a state's numbers
Number = Callable[[Settings, float], float]  # of the settings and the step count


@dataclasses.dataclass(frozen=True)
class Call:
    """``out = op(*values, number)``. Values that are no operands live from the call that makes them to the end."""

    op: str
    out: str
    values: tuple[str, ...]
    number: Number | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Formula:
    """One optimizer's update. ``operands`` begin with "param" and "grad"; those in ``made`` begin as copies of the gradient.

    From step ``first_step`` on it is the one that is asked for, if it ever is. The same choices give the same object.
    """

    operands: tuple[str, ...]
    calls: tuple[Call, ...]
    made: tuple[str, ...] = ()
    first_step: int = 0

    @property
    def num_writes(self) -> list[int]:
        """How often each operand is written."""
        return [sum(call.out == name for call in self.calls) for name in self.operands]

    @property
    def scratch(self) -> tuple[str, ...]:
        """The values that are no operands."""
        return tuple(dict.fromkeys(call.out for call in self.calls if call.out not in self.operands))

    def numbers(self, settings: Settings, step: float) -> list[float]:
        """The numbers of the calls that have one, in their order."""
        return [call.number(settings, step) for call in self.calls if call.number is not None]


@functools.cache
def adam(amsgrad: bool, maximize: bool, has_decay: bool, is_decoupled: bool) -> Formula:
    """Adam and AdamW (Loshchilov and Hutter 2019: ``is_decoupled``); ``amsgrad`` of Reddi et al. 2018."""
    second = "max_exp_avg_sq" if amsgrad else "exp_avg_sq"
    calls, _ = _begin_adam(maximize, has_decay, is_decoupled)
    if amsgrad:
        calls.append(Call("maximum", second, (second, "exp_avg_sq")))
    calls += [
        Call("sqrt", "denom", (second,)),
        Call("div", "denom", ("denom",), lambda s, step: (1 - s["beta2"] ** step) ** 0.5),
        Call("add_number", "denom", ("denom",), lambda s, _: s["eps"]),
        Call("addcdiv", "param", ("param", "exp_avg", "denom"), lambda s, step: -(s["lr"] / (1 - s["beta1"] ** step))),
    ]
    return Formula(("param", "grad", "exp_avg", "exp_avg_sq", *([second] if amsgrad else [])), tuple(calls))


@functools.cache
def nadam(maximize: bool, has_decay: bool, is_decoupled: bool) -> Formula:
    """NAdam (Dozat 2016). The setting "mu_product" is the state's, that of this step included."""
    calls, grad = _begin_adam(maximize, has_decay, is_decoupled)
    calls += [
        Call("div", "denom", ("exp_avg_sq",), lambda s, step: 1 - s["beta2"] ** step),
        Call("sqrt", "denom", ("denom",)),
        Call("add_number", "denom", ("denom",), lambda s, _: s["eps"]),
        Call(
            "addcdiv",
            "param",
            ("param", grad, "denom"),
            lambda s, step: -s["lr"] * (1.0 - momentum_of_nadam(s, step)) / (1.0 - s["mu_product"]),
        ),
        Call("addcdiv", "param", ("param", "exp_avg", "denom"), _step_of_nadam),
    ]
    return Formula(("param", "grad", "exp_avg", "exp_avg_sq"), tuple(calls))


@functools.cache
def foreach_nadam(maximize: bool, has_decay: bool, is_decoupled: bool) -> Formula:
    """NAdam over lists, which takes the root before it corrects the bias."""
    single = nadam(maximize, has_decay, is_decoupled)
    calls = [call for call in single.calls if "denom" not in call.out]
    place = next(place for place, call in enumerate(calls) if call.op == "addcdiv")
    denom = [
        Call("sqrt", "denom", ("exp_avg_sq",)),
        Call("div", "denom", ("denom",), lambda s, step: (1 - s["beta2"] ** step) ** 0.5),
        Call("add_number", "denom", ("denom",), lambda s, _: s["eps"]),
    ]
    return Formula(single.operands, (*calls[:place], *denom, *calls[place:]))


def momentum_of_nadam(settings: Settings, step: float) -> float:
    """Dozat's mu of this step, warmed up."""
    mu: float = settings["beta1"] * (1.0 - 0.5 * (0.96 ** (step * settings["momentum_decay"])))
    return mu


def _step_of_nadam(settings: Settings, step: float) -> float:
    next_mu = momentum_of_nadam(settings, step + 1)
    size: float = (-settings["lr"] * next_mu) / (1.0 - settings["mu_product"] * next_mu)
    return size


@functools.cache
def radam(is_rectified: bool, maximize: bool, has_decay: bool, is_decoupled: bool) -> Formula:
    """RAdam (Liu et al. 2020): ``is_rectified`` from the step on where the variance can be told."""
    calls, _ = _begin_adam(maximize, has_decay, is_decoupled)
    calls += [
        Call("div", "update", ("exp_avg",), lambda s, step: 1 - s["beta1"] ** step),
        Call("mul", "update", ("update",), lambda s, _: s["lr"]),
    ]
    if is_rectified:
        calls += [
            Call("sqrt", "adaptive", ("exp_avg_sq",)),
            Call("add_number", "adaptive", ("adaptive",), lambda s, _: s["eps"]),
            Call("reciprocal", "adaptive", ("adaptive",)),
            Call("mul", "adaptive", ("adaptive",), lambda s, step: (1 - s["beta2"] ** step) ** 0.5),
            Call("mul_values", "update", ("update", "adaptive")),
            Call("mul", "update", ("update",), _rectification_of_radam),
        ]
    calls.append(Call("add", "param", ("param", "update"), lambda s, _: -1.0))
    return Formula(("param", "grad", "exp_avg", "exp_avg_sq"), tuple(calls), first_step=1000 if is_rectified else 0)


@functools.cache
def foreach_radam(is_rectified: bool, maximize: bool, has_decay: bool, is_decoupled: bool) -> Formula:
    """RAdam over lists: the same calls for steps of both kinds, where the numbers of the other kind are zeros."""
    calls, _ = _begin_adam(maximize, has_decay, is_decoupled)
    calls += [
        Call("sqrt", "size", ("exp_avg_sq",)),
        Call("add_number", "size", ("size",), lambda s, _: s["eps"]),
        Call("div", "size", ("size",), _rectified_size_of_radam),
        Call("reciprocal", "size", ("size",)),
        Call("add_number", "size", ("size",), _plain_size_of_radam),
        Call("addcmul", "param", ("param", "exp_avg", "size"), lambda s, _: 1),
    ]
    return Formula(("param", "grad", "exp_avg", "exp_avg_sq"), tuple(calls), first_step=1000 if is_rectified else 0)


def _rectified_size_of_radam(settings: Settings, step: float) -> float:
    correction = 1 - settings["beta1"] ** step
    size: float = (
        ((1 - settings["beta2"] ** step) ** 0.5) * (settings["lr"] * _rectification_if_any(settings, step) / correction) * -1
    )
    return size


def _plain_size_of_radam(settings: Settings, step: float) -> float:
    kept = 0 if _rectification_if_any(settings, step) > 0 else 1.0
    size: float = (settings["lr"] * kept / (1 - settings["beta1"] ** step)) * -1
    return size


def _rectification_if_any(settings: Settings, step: float) -> float:
    return _rectification_of_radam(settings, step) if rho_of_radam(settings, step)[1] > 5 else 0


def rho_of_radam(settings: Settings, step: float) -> tuple[float, float]:
    """The length of the moving average, at last and at ``step``."""
    beta2 = settings["beta2"]
    last = 2 / (1 - beta2) - 1
    return last, last - 2 * step * (beta2**step) / (1 - beta2**step)


def _rectification_of_radam(settings: Settings, step: float) -> float:
    last, now = rho_of_radam(settings, step)
    ratio: float = ((now - 4) * (now - 2) * last / ((last - 4) * (last - 2) * now)) ** 0.5
    return ratio


@functools.cache
def sgd(has_momentum: bool, nesterov: bool, maximize: bool, has_decay: bool, ahead: str = "ahead") -> Formula:
    """Stochastic gradient descent, with a momentum buffer that is there already (Sutskever et al. 2013: ``nesterov``)."""
    calls, grad = _begin(maximize, has_decay)
    if has_momentum:
        calls += [
            Call("mul", "momentum_buffer", ("momentum_buffer",), lambda s, _: s["momentum"]),
            Call("add", "momentum_buffer", ("momentum_buffer", grad), lambda s, _: 1 - s["dampening"]),
        ]
        if nesterov:
            calls.append(Call("add", ahead, (grad, "momentum_buffer"), lambda s, _: s["momentum"]))
        grad = ahead if nesterov else "momentum_buffer"
    calls.append(Call("add", "param", ("param", grad), lambda s, _: -s["lr"]))
    return Formula(("param", "grad", *(["momentum_buffer"] if has_momentum else [])), tuple(calls))


@functools.cache
def first_sgd(nesterov: bool, maximize: bool, has_decay: bool, ahead: str = "ahead") -> Formula:
    """The first step with momentum, which makes the buffer: of the gradient, with its decay."""
    calls, buffer = list[Call](), "momentum_buffer"
    if maximize:
        calls.append(Call("neg", buffer, (buffer,)))
    if has_decay:
        calls.append(Call("add", buffer, (buffer, "param"), lambda s, _: s["weight_decay"]))
    if nesterov:
        calls.append(Call("add", ahead, (buffer, buffer), lambda s, _: s["momentum"]))
    calls.append(Call("add", "param", ("param", ahead if nesterov else buffer), lambda s, _: -s["lr"]))
    return Formula(("param", "grad", buffer), tuple(calls), made=(buffer,))


def foreach_sgd(has_momentum: bool, nesterov: bool, maximize: bool, has_decay: bool) -> Formula:
    """SGD over lists, which looks ahead (Nesterov) in the gradients themselves where it made no others: ``p.grad`` changes."""
    return sgd(has_momentum, nesterov, maximize, has_decay, "ahead" if maximize or has_decay else "grad")


def foreach_first_sgd(nesterov: bool, maximize: bool, has_decay: bool) -> Formula:
    """The first step of ``foreach_sgd`` with momentum."""
    return first_sgd(nesterov, maximize, has_decay, "ahead" if maximize or has_decay else "grad")


@functools.cache
def rmsprop(has_momentum: bool, centered: bool, maximize: bool, has_decay: bool) -> Formula:
    """RMSprop (Hinton's lectures; ``centered`` of Graves 2013)."""
    calls, grad = _begin(maximize, has_decay)
    calls += [
        Call("mul", "square_avg", ("square_avg",), lambda s, _: s["alpha"]),
        Call("addcmul", "square_avg", ("square_avg", grad, grad), lambda s, _: 1 - s["alpha"]),
    ]
    if centered:
        calls += [
            Call("lerp", "grad_avg", ("grad_avg", grad), lambda s, _: 1 - s["alpha"]),
            Call("addcmul", "avg", ("square_avg", "grad_avg", "grad_avg"), lambda s, _: -1),
            Call("sqrt", "avg", ("avg",)),
        ]
    else:
        calls.append(Call("sqrt", "avg", ("square_avg",)))
    calls.append(Call("add_number", "avg", ("avg",), lambda s, _: s["eps"]))
    if has_momentum:
        calls += [
            Call("mul", "momentum_buffer", ("momentum_buffer",), lambda s, _: s["momentum"]),
            Call("addcdiv", "momentum_buffer", ("momentum_buffer", grad, "avg"), lambda s, _: 1),
            Call("add", "param", ("param", "momentum_buffer"), lambda s, _: -s["lr"]),
        ]
    else:
        calls.append(Call("addcdiv", "param", ("param", grad, "avg"), lambda s, _: -s["lr"]))
    state = ["square_avg", *(["grad_avg"] if centered else []), *(["momentum_buffer"] if has_momentum else [])]
    return Formula(("param", "grad", *state), tuple(calls))


@functools.cache
def adagrad(maximize: bool, has_decay: bool) -> Formula:
    """Adagrad (Duchi, Hazan and Singer 2011)."""
    calls, grad = _begin(maximize, has_decay)
    calls += [
        Call("addcmul", "state_sum", ("state_sum", grad, grad), lambda s, _: 1),
        Call("sqrt", "std", ("state_sum",)),
        Call("add_number", "std", ("std",), lambda s, _: s["eps"]),
        Call("addcdiv", "param", ("param", grad, "std"), lambda s, step: -(s["lr"] / (1 + (step - 1) * s["lr_decay"]))),
    ]
    return Formula(("param", "grad", "state_sum"), tuple(calls))


@functools.cache
def foreach_adagrad(maximize: bool, has_decay: bool) -> Formula:
    """Adagrad over lists, which has the size of the step in the numerator."""
    calls, grad = _begin(maximize, has_decay)
    calls += [
        Call("addcmul", "state_sum", ("state_sum", grad, grad), lambda s, _: 1),
        Call("sqrt", "std", ("state_sum",)),
        Call("add_number", "std", ("std",), lambda s, _: s["eps"]),
        Call("mul", "numerator", (grad,), lambda s, step: -s["lr"] / (1 + (step - 1) * s["lr_decay"])),
        Call("addcdiv", "param", ("param", "numerator", "std"), lambda s, _: 1),
    ]
    return Formula(("param", "grad", "state_sum"), tuple(calls))


@functools.cache
def adadelta(maximize: bool, has_decay: bool) -> Formula:
    """Adadelta (Zeiler 2012)."""
    calls, grad = _begin(maximize, has_decay)
    calls += [
        Call("mul", "square_avg", ("square_avg",), lambda s, _: s["rho"]),
        Call("addcmul", "square_avg", ("square_avg", grad, grad), lambda s, _: 1 - s["rho"]),
        Call("add_number", "std", ("square_avg",), lambda s, _: s["eps"]),
        Call("sqrt", "std", ("std",)),
        Call("add_number", "delta", ("acc_delta",), lambda s, _: s["eps"]),
        Call("sqrt", "delta", ("delta",)),
        Call("div_values", "delta", ("delta", "std")),
        Call("mul_values", "delta", ("delta", grad)),
        Call("mul", "acc_delta", ("acc_delta",), lambda s, _: s["rho"]),
        Call("addcmul", "acc_delta", ("acc_delta", "delta", "delta"), lambda s, _: 1 - s["rho"]),
        Call("add", "param", ("param", "delta"), lambda s, _: -s["lr"]),
    ]
    return Formula(("param", "grad", "square_avg", "acc_delta"), tuple(calls))


@functools.cache
def adamax(maximize: bool, has_decay: bool) -> Formula:
    """Adamax (Kingma and Ba 2015, section 7)."""
    calls, grad = _begin(maximize, has_decay)
    calls += [
        Call("lerp", "exp_avg", ("exp_avg", grad), lambda s, _: 1 - s["beta1"]),
        Call("mul", "exp_inf", ("exp_inf",), lambda s, _: s["beta2"]),
        Call("abs", "norm", (grad,)),
        Call("add_number", "norm", ("norm",), lambda s, _: s["eps"]),
        Call("maximum", "exp_inf", ("exp_inf", "norm")),
        Call("addcdiv", "param", ("param", "exp_avg", "exp_inf"), lambda s, step: -(s["lr"] / (1 - s["beta1"] ** step))),
    ]
    return Formula(("param", "grad", "exp_avg", "exp_inf"), tuple(calls))


def _begin(maximize: bool, has_decay: bool) -> tuple[list[Call], str]:
    """What is done to the gradient first, and the name of what it becomes."""
    calls, grad = list[Call](), "grad"
    if maximize:
        calls.append(Call("neg", "ascent", (grad,)))
        grad = "ascent"
    if has_decay:
        calls.append(Call("add", "decayed", (grad, "param"), lambda s, _: s["weight_decay"]))
        grad = "decayed"
    return calls, grad


def _begin_adam(maximize: bool, has_decay: bool, is_decoupled: bool) -> tuple[list[Call], str]:
    """Decay, and both moments, as Adam, NAdam and RAdam begin; and the name of what the gradient becomes."""
    calls, grad = _begin(maximize, has_decay and not is_decoupled)
    if has_decay and is_decoupled:
        calls.append(Call("mul", "param", ("param",), lambda s, _: 1 - s["lr"] * s["weight_decay"]))
    calls += [
        Call("lerp", "exp_avg", ("exp_avg", grad), lambda s, _: 1 - s["beta1"]),
        Call("mul", "exp_avg_sq", ("exp_avg_sq",), lambda s, _: s["beta2"]),
        Call("addcmul", "exp_avg_sq", ("exp_avg_sq", grad, grad), lambda s, _: 1 - s["beta2"]),
    ]
    return calls, grad
