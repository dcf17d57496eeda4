"""The whole steps of models.py in JAX: the same architectures, sizes, parameters and inputs, under one jit with Adam.

    python -m benchmarks.jax_steps [--only mlp,gpt]         compares the first losses with eager's

    WAYS: {model: {name: loss}}        prepare: number of threads -> none        training: (model, name) -> Training

A loss is ``(parameters, buffers, inputs) -> (loss, buffers)``; each is a dictionary by the names that the torch model has for
them. Images and their filters have channels last, which takes XLA a fifth less time on the CPU; the rest lies as torch has it.
JAX is an extra: ``pip install jax``.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import math
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch import nn

from benchmarks import step
from benchmarks.common import fresh
from benchmarks.runs import add_only

Arrays = dict[str, jax.Array]
Loss = Callable[[Arrays, Arrays, Arrays], tuple[jax.Array, Arrays]]
LEARNING_RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-8  # torch's defaults
NUM_HEADS = 4


def without_buffers(value: Callable[[Arrays, Arrays], jax.Array]) -> Loss:
    return lambda parameters, buffers, inputs: (value(parameters, inputs), buffers)


def linear(p: Arrays, name: str, x: jax.Array) -> jax.Array:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def mean_squared(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.square(a - b).mean()


def chosen(logs: jax.Array, labels: jax.Array) -> jax.Array:
    """For each row, that of its label."""
    return jnp.take_along_axis(logs, labels[:, None], axis=1)[:, 0]


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return -chosen(jax.nn.log_softmax(logits), labels).mean()


def mlp(p: Arrays, inputs: Arrays) -> jax.Array:
    """As many layers of linear and tanh as there are parameters for."""
    x = inputs["x"]
    for index in range(len(p) // 2):
        x = jnp.tanh(linear(p, str(2 * index), x))
    return x.sum()


def ppo(p: Arrays, inputs: Arrays) -> jax.Array:
    features = jnp.tanh(linear(p, "body.2", jnp.tanh(linear(p, "body.0", inputs["states"]))))
    logits, values = linear(p, "policy", features), linear(p, "value", features)[:, 0]
    logs, advantages = jax.nn.log_softmax(logits), inputs["advantages"]
    ratio = jnp.exp(chosen(logs, inputs["actions"]) - inputs["old"])
    clipped = jnp.minimum(ratio * advantages, ratio.clip(0.8, 1.2) * advantages).mean()
    entropy = -(jnp.exp(logs) * logs).sum(-1).mean()
    return -clipped + 0.5 * mean_squared(values, inputs["returns"]) - 0.01 * entropy


def lstm_cell(p: Arrays, state: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    hidden, memory = state
    gates = x @ p["weight_ih"].T + p["bias_ih"] + hidden @ p["weight_hh"].T + p["bias_hh"]
    write, keep, value, read = jnp.split(gates, 4, axis=1)
    memory = jax.nn.sigmoid(keep) * memory + jax.nn.sigmoid(write) * jnp.tanh(value)
    return jax.nn.sigmoid(read) * jnp.tanh(memory), memory


def lstm(p: Arrays, inputs: Arrays) -> jax.Array:
    state = (jnp.zeros((16, 64)),) * 2
    for x in inputs["inputs"]:
        state = lstm_cell(p, state, x)
    return jnp.square(state[0]).mean()


def lstm_by_scan(p: Arrays, inputs: Arrays) -> jax.Array:
    state = (jnp.zeros((16, 64)),) * 2
    (hidden, _), _ = lax.scan(lambda state, x: (lstm_cell(p, state, x), None), state, inputs["inputs"])
    return jnp.square(hidden).mean()


def layer_norm(p: Arrays, name: str, x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    normed = centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)
    return normed * p[f"{name}.weight"] + p[f"{name}.bias"]


def gpt(p: Arrays, inputs: Arrays, dtype: Any = jnp.float32) -> jax.Array:
    """``dtype`` is that of products and attention, as under torch's autocast; norms, gelu, sums and the loss are in float32."""
    tokens = inputs["tokens"]
    cast = {name: value.astype(dtype) for name, value in p.items()}
    x = p["embed.weight"][tokens] + p["position"][: tokens.shape[1]]
    for block in sorted({name.rpartition(".norm1.")[0] for name in p if ".norm1." in name}):
        normed = layer_norm(p, f"{block}.norm1", x).astype(dtype)
        q, k, v = jnp.moveaxis(linear(cast, f"{block}.qkv", normed).reshape(*tokens.shape, 3, NUM_HEADS, -1), 2, 0)
        attended = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(normed.shape)
        x = x + linear(cast, f"{block}.project", attended)
        expanded = linear(cast, f"{block}.expand", layer_norm(p, f"{block}.norm2", x).astype(dtype))
        active = jax.nn.gelu(expanded.astype(jnp.float32), approximate=False).astype(dtype)
        x = x + linear(cast, f"{block}.contract", active)
    logits = (layer_norm(p, "norm", x).astype(dtype) @ cast["embed.weight"].T).astype(jnp.float32)
    return cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), tokens[:, 1:].ravel())


def batch_norm(p: Arrays, buffers: Arrays, name: str, x: jax.Array) -> tuple[jax.Array, Arrays]:
    """Over all but the channels, which come last. Returns the buffers, too, with what this batch adds to the running ones."""
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    count = x.size // x.shape[-1]
    now = {"running_mean": mean, "running_var": variance * (count / (count - 1))}
    later = {f"{name}.{each}": 0.9 * buffers[f"{name}.{each}"] + 0.1 * value for each, value in now.items()}
    normed = (x - mean) * (p[f"{name}.weight"] * lax.rsqrt(variance + 1e-5)) + p[f"{name}.bias"]
    return normed, {**buffers, **later, f"{name}.num_batches_tracked": buffers[f"{name}.num_batches_tracked"] + 1}


def cnn(p: Arrays, buffers: Arrays, inputs: Arrays) -> tuple[jax.Array, Arrays]:
    x, dimensions = inputs["images"], ("NHWC", "HWIO", "NHWC")
    for index in (0, 3, 6):
        x = lax.conv_general_dilated(x, p[f"{index}.weight"], (2, 2), [(1, 1), (1, 1)], dimension_numbers=dimensions)
        x, buffers = batch_norm(p, buffers, str(index + 1), x + p[f"{index}.bias"])
        x = jax.nn.relu(x)
    features = x.transpose(0, 3, 1, 2).reshape(len(x), -1)  # in torch's order, as the weights of the last layer are
    return cross_entropy(linear(p, "10", features), inputs["labels"]), buffers


def perceptron(p: Arrays, name: str, x: jax.Array) -> jax.Array:
    return linear(p, f"{name}.2", jax.nn.silu(linear(p, f"{name}.0", x)))


def energy(p: Arrays, positions: jax.Array, source: jax.Array, target: jax.Array) -> jax.Array:
    distances = jnp.sqrt(jnp.square(positions[source] - positions[target]).sum(-1) + 1e-6)
    radial = jnp.exp(-jnp.square(distances[:, None] - jnp.linspace(0, 3, 8)))
    features = jnp.broadcast_to(p["species"], (len(positions), p["species"].shape[1]))
    for _ in range(2):
        messages = features[source] * perceptron(p, "filter", radial)
        features = features + perceptron(p, "update", jnp.zeros_like(features).at[target].add(messages))
    return perceptron(p, "readout", features).sum()


def force_field(p: Arrays, inputs: Arrays) -> jax.Array:
    of_positions = functools.partial(energy, p, source=inputs["source"], target=inputs["target"])
    value, gradient = jax.value_and_grad(of_positions)(inputs["positions"])
    return mean_squared(value, inputs["energy_label"]) + mean_squared(-gradient, inputs["force_label"])


def burgers(p: Arrays, inputs: Arrays) -> jax.Array:
    t, x = inputs["t"], inputs["x"]

    def solution(t: jax.Array, x: jax.Array) -> jax.Array:
        hidden = jnp.tanh(linear(p, "0", jnp.concatenate([t, x], 1)))
        return linear(p, "4", jnp.tanh(linear(p, "2", hidden)))

    first = jax.grad(lambda t, x: solution(t, x).sum(), (0, 1))
    u, (u_t, u_x) = solution(t, x), first(t, x)
    u_xx = jax.grad(lambda x: first(t, x)[1].sum())(x)
    return jnp.square(u_t + u * u_x - 0.01 / jnp.pi * u_xx).mean()


STEP = "JAX: step"
WAYS: dict[str, dict[str, Loss]] = {
    "64-layer MLP": {STEP: without_buffers(mlp)},
    "Linear+Tanh": {STEP: without_buffers(mlp)},
    "PPO update": {STEP: without_buffers(ppo)},
    "LSTMCell x 32": {STEP: without_buffers(lstm), f"{STEP}, lax.scan": without_buffers(lstm_by_scan)},
    "GPT float32": {STEP: without_buffers(gpt)},
    "GPT bf16": {STEP: without_buffers(functools.partial(gpt, dtype=jnp.bfloat16))},
    "CNN": {STEP: cnn},
    "force field": {STEP: without_buffers(force_field)},
    "Burgers": {STEP: without_buffers(burgers)},
}
TOLERANCES = {"GPT bf16": 1e-3}  # of losses, beside eager's: bf16 has 8 bits
TOLERANCE = 1e-4


class State(NamedTuple):
    """All that a step changes. ``averages`` and ``squares`` are Adam's."""

    parameters: Arrays
    buffers: Arrays
    averages: Arrays
    squares: Arrays
    num_steps: jax.Array


def adam(state: State, buffers: Arrays, gradients: Arrays) -> State:
    """The update of torch.optim.Adam. The powers of beta by ``expm1``: 1 - 0.999 in float32 has four digits."""
    number = state.num_steps + 1
    averages = jax.tree.map(lambda own, new: BETA1 * own + (1 - BETA1) * new, state.averages, gradients)
    squares = jax.tree.map(lambda own, new: BETA2 * own + (1 - BETA2) * new * new, state.squares, gradients)
    rate = LEARNING_RATE / -jnp.expm1(number * math.log(BETA1))
    root = jnp.sqrt(-jnp.expm1(number * math.log(BETA2)))

    def updated(parameter: jax.Array, average: jax.Array, square: jax.Array) -> jax.Array:
        return parameter - rate * average / (jnp.sqrt(square) / root + EPSILON)

    return State(jax.tree.map(updated, state.parameters, averages, squares), buffers, averages, squares, number)


def compiled(loss: Loss) -> Callable[[State, Arrays], tuple[State, jax.Array]]:
    """The whole step under one jit; its state is given up to it, so that it may be written in place."""

    def step(state: State, inputs: Arrays) -> tuple[State, jax.Array]:
        (value, buffers), gradients = jax.value_and_grad(loss, has_aux=True)(state.parameters, state.buffers, inputs)
        return adam(state, buffers, gradients), value

    return jax.jit(step, donate_argnums=0)


@dataclasses.dataclass
class Training:
    """A model's step, and what it changes. ``names`` are the parameters', in torch's order."""

    run: Callable[[State, Arrays], tuple[State, jax.Array]]
    names: list[str]
    state: State
    inputs: Arrays

    def step(self) -> jax.Array:
        """Returns when it is done: the loss is ready when all of the computation is."""
        self.state, loss = self.run(self.state, self.inputs)
        return loss.block_until_ready()

    def saved(self) -> tuple[list[torch.Tensor]]:
        """Copies of the parameters, as torch has them."""
        found = (np.asarray(self.state.parameters[name]) for name in self.names)
        return ([torch.tensor(value.transpose(3, 2, 0, 1) if value.ndim == 4 else value) for value in found],)


def training(model: str, loss: Loss) -> Training:
    """The step of a model, from the parameters that the torch model has after its seed."""
    module, inputs = taken_over(model)
    parameters, buffers = arrays(module.named_parameters()), arrays(module.named_buffers())
    averages, squares = ({name: jnp.zeros_like(value) for name, value in parameters.items()} for _ in range(2))
    state = State(parameters, buffers, averages, squares, jnp.zeros(()))
    return Training(compiled(loss), list(parameters), state, arrays(inputs.items(), channels_last=(0, 2, 3, 1)))


def taken_over(model: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """The module that a step of models.py trains, and the tensors that it is given."""
    torch.manual_seed(0)
    models, losses = fresh("models"), list[Any]()
    models._step = lambda parameters, loss: losses.append(loss)  # type: ignore[attr-defined]
    models.MODELS[model](lambda target: target)
    found = dict(closed_over(losses[0]))
    (module,) = (value for value in found.values() if isinstance(value, nn.Module))
    return module, {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}


def closed_over(function: Any) -> Iterator[tuple[str, Any]]:
    """What a function finds around it, and what the functions find that are there, by name."""
    for name, value in inspect.getclosurevars(function).nonlocals.items():
        if inspect.isfunction(value):
            yield from closed_over(value)
        else:
            yield name, value


def arrays(tensors: Iterable[tuple[str, torch.Tensor]], channels_last: tuple[int, ...] = (2, 3, 1, 0)) -> Arrays:
    """Copies, for what is given up to a step must not be torch's memory. Four dimensions are put into another order."""
    found = {name: tensor.detach() for name, tensor in tensors}
    ordered = {name: value.permute(channels_last) if value.ndim == 4 else value for name, value in found.items()}
    return {name: jnp.array(value.numpy(), copy=True) for name, value in ordered.items()}


def prepare(num_threads: int) -> None:
    """Call once, before anything else of JAX's: so many threads at most. Compiles a trifle, so that first steps import nothing.

    XLA's pool has a thread for each core that the process may use when the client is made. With ``multi_thread_eigen`` off it
    is not used at all, and without asynchronous dispatch the thread that calls is the one that calculates.
    """
    if num_threads == 1:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:num_threads])
    try:
        jax.jit(jnp.sin)(jnp.ones(2)).block_until_ready()
    finally:
        os.sched_setaffinity(0, cores)


def check_losses(model: str, own: list[float], eager: list[float]) -> float:
    """How far the losses are from eager's, of the greatest of them.

    Raises:
        RuntimeError: if that is more than rounding explains: it would be another step that is timed.
    """
    difference = max(abs(mine - theirs) for mine, theirs in zip(own, eager, strict=True)) / max(map(abs, eager))
    if not difference <= TOLERANCES.get(model, TOLERANCE):
        raise RuntimeError(f"JAX's losses are not eager's: {own} and {eager}")
    return difference


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the first losses of the steps in JAX with eager's.")
    add_only(parser, WAYS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    prepare(1)
    for model in options.only:
        eager = step.training(model, step.WAYS["eager"])
        losses = [eager.step().item() for _ in range(step.NUM_STEPS_COMPARED)]
        for name, loss in WAYS[model].items():
            own = training(model, loss)
            difference = check_losses(model, [own.step().item() for _ in losses], losses)
            print(f"{model}, {name}: {len(losses)} losses, {difference:.1e} from eager's", flush=True)


if __name__ == "__main__":
    main()
