"""Compiled code that asks whether it is compiled is told what eager would tell it: it is not."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradc
from gradc.ir.program import Program
from tests.oracle import check, constant, leaf

QUESTIONS = {
    "torch.compiler.is_compiling": torch.compiler.is_compiling,
    "torch.compiler.is_dynamo_compiling": torch.compiler.is_dynamo_compiling,
    "torch.compiler.is_exporting": torch.compiler.is_exporting,
    "torch._dynamo.is_compiling": torch._dynamo.is_compiling,
    "torch._utils.is_compiling": torch._utils.is_compiling,
    "torch.jit.is_tracing": torch.jit.is_tracing,
    "torch.jit.is_scripting": torch.jit.is_scripting,
    "torch.fx is_fx_symbolic_tracing": torch.fx._symbolic_trace.is_fx_symbolic_tracing,
}


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("name", QUESTIONS)
def test_every_question_is_answered_as_in_eager(name: str, fullgraph: bool) -> None:
    is_asked = QUESTIONS[name]

    def step(compile: Any, x: Tensor) -> Tensor:
        y = compile(lambda x: x.sin() if is_asked() else x.cos(), fullgraph=fullgraph)(x)
        y.sum().backward()
        return y

    check(step, leaf(3))


def test_other_compilers_are_told_what_torch_says() -> None:
    gradc.compile(lambda x: x * 2)(torch.ones(2))
    ask = torch.compile(lambda x: x * (2 if torch.compiler.is_compiling() else 3), backend="eager", fullgraph=True)
    assert ask(torch.ones(())) == 2


@pytest.mark.parametrize("ask", [torch.cuda.is_current_stream_capturing, torch.xpu.is_current_stream_capturing])
def test_stream_capture_may_be_asked_for(ask: Callable[[], bool]) -> None:
    """transformers asks next to the others, and expects an exception where torch was built without such devices."""

    def is_capturing() -> bool:
        try:
            return ask()
        except Exception:
            return False

    def step(compile: Any, x: Tensor) -> Tensor:
        return compile(lambda x: x.sin() if is_capturing() else x.cos())(x)

    assert check(step, leaf(3)).num_graphs == 1


def test_forces_that_eager_alone_prepares() -> None:
    """mace: what is differentiated by requires a gradient where nothing is compiled; it was left out, and grad raised."""

    def forces(positions: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            positions.requires_grad_(True)
        energy = positions.square().sum()
        return torch.autograd.grad(energy, positions, create_graph=True)[0]

    def step(compile: Any, positions: Tensor) -> Tensor:
        found = compile(forces)(positions)
        found.square().sum().backward()
        return found

    check(step, constant(3, 2), allow_fallback=True)


def attention() -> nn.Module:
    return nn.MultiheadAttention(32, 4, batch_first=True).eval()


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval()


@pytest.mark.parametrize("enabled", [False, True], ids=["no_grad", "grad"])
def test_fast_path_of_attention(enabled: bool) -> None:
    def step(compile: Any, module: nn.Module, x: Tensor) -> Tensor:
        compiled = compile(lambda x: module(x, x, x)[0])
        with torch.set_grad_enabled(enabled):
            return compiled(x)

    check(step, attention, constant(2, 9, 32), allow_fallback=True)


def test_fast_path_of_an_encoder() -> None:
    def step(compile: Any, module: nn.Module, x: Tensor) -> Tensor:
        padding = torch.arange(9).expand(2, 9) >= torch.tensor([[9], [5]])
        with torch.no_grad():
            return compile(module)(x, src_key_padding_mask=padding)

    check(step, encoder, constant(2, 9, 32), allow_fallback=True)


class Raises(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("no")


def test_hooks_that_are_always_called_where_forward_raises() -> None:
    heard: list[str] = []

    def step(compile: Any, x: Tensor) -> list[str]:
        module = Raises()
        module.register_forward_hook(lambda *_: heard.append("called"), always_call=True)

        def caught(x: Tensor) -> Tensor:
            try:
                return module(x)
            except ValueError:
                return x * 2

        return compile(caught)(x)

    check(step, leaf(2), allow_fallback=True)
    assert heard == ["called", "called"]


def test_what_runs_while_gradc_compiles_is_told_so_too() -> None:
    """Adam took another way in a thread, and rounded otherwise, while another thread compiled."""
    seen: dict[str, list[str]] = {}

    def ask(where: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seen[where] = [name for name, is_asked in QUESTIONS.items() if is_asked()]

    def backend(program: Program) -> Any:
        thread = threading.Thread(target=ask, args=["elsewhere"])
        thread.start()
        thread.join()
        ask("here")
        return gradc.backends.lookup_backend("eager")(program)

    gradc.register_backend("asks", backend)
    gradc.compile(lambda x: x * 2, backend="asks")(torch.ones(2))
    assert seen == {"elsewhere": [], "here": []}


def test_fullgraph_says_who_asked() -> None:
    """The way that a library takes when it is compiled could be traced; that of eager cannot."""

    def of_a_library(x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return x.sin()
        print(x.sum().item() > 0)
        return x.sin()

    run = gradc.compile(lambda x: of_a_library(x) * 2, fullgraph=True)
    with pytest.raises(gradc.FallbackError) as caught:
        run(torch.ones(3))
    told = [line for line in str(caught.value).splitlines() if "is_compiling() is False, as in eager" in line]
    assert len(told) == 1 and f"{__file__}:" in told[0] and "in of_a_library" in told[0]
    run = gradc.compile(lambda x: [print(x.sum().item() > 0), x.sin()][1], fullgraph=True)
    with pytest.raises(gradc.FallbackError) as caught:
        run(torch.ones(3))
    assert "is_compiling" not in str(caught.value)
