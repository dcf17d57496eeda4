"""What is slower than eager runs eagerly, counted with both figures; results are the same. The tests set the time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import gradc
from gradc import native
from gradc.bits import same_bits
from gradc.errors import ConfigError
from gradc.frontend import faster
from gradc.frontend.faster import Faster, verdict_of
from gradc.journal import at_each_pass, listening
from gradc.policy import profitability
from gradc.policy.ab_timer import Arm, Verdict
from gradc.policy.budget import Budget, Purse
from gradc.policy.credit import CREDIT
from gradc.torch_private.dynamo import Uncompiled

SLOW, FAST = 2**-10, 2**-11  # seconds
COMPARED = {"compare_with_eager": True}


class Hands:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Two:
    """A compiled function, an eager one and maybe a captured one, which take as long as they are told, and the ``Faster``."""

    def __init__(self, hands: Hands, compiled: float = SLOW, eager: float = FAST, captured: float | None = None) -> None:
        self.calls: list[Arm] = []
        self.budget = Budget(Purse(None), "step")
        arms = self._taking(hands, compiled, Arm.COMPILED), self._taking(hands, eager, Arm.EAGER)
        third = None if captured is None else self._taking(hands, captured, Arm.CAPTURED)
        self.faster = Faster(*arms, "step", self.budget, third)

    def _taking(self, hands: Hands, seconds: float, arm: Arm) -> Callable[[], Arm]:
        def call() -> Arm:
            hands.now += seconds
            self.calls.append(arm)
            return arm

        return call

    def call(self, times: int = 1) -> list[Arm]:
        """Which arm each of the next calls went to."""
        first = len(self.calls)
        for _ in range(times):
            self.faster()
        return self.calls[first:]


@pytest.fixture(autouse=True)
def hands(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hands]:
    made = Hands()
    monkeypatch.setattr(profitability, "CLOCK", made)
    monkeypatch.setattr(profitability, "trial_clock", lambda: made)
    gradc.reset()
    yield made
    gradc.reset()


def num_counted() -> int:
    return gradc.counters["uncompiled"]["slower than eager"]


def num_compared() -> int:
    return gradc.counters["stats"]["calls run eagerly to compare"]


def test_slower_than_eager_runs_eagerly_and_each_call_is_counted(hands: Hands) -> None:
    two = Two(hands)
    with listening() as events:
        two.call(120)
    assert two.call(3) == [Arm.EAGER] * 3 and verdict_of(two.faster) is not None
    assert num_counted() + num_compared() == two.calls.count(Arm.EAGER)
    [found] = [event.what for event in events if isinstance(event.what, Uncompiled)]
    assert found.detail == "step: 0.977 ms from call to call compiled, 0.488 ms eagerly"
    assert "compare_with_eager" in found.advice
    assert [event.what for event in events if event.artifact == "perf"] == [f"step runs eagerly: {verdict_of(two.faster)}"]


def test_faster_than_eager_stays_compiled(hands: Hands) -> None:
    two = Two(hands, FAST, SLOW)
    two.call(120)
    assert two.call(3) == [Arm.COMPILED] * 3
    assert (num_counted(), num_compared()) == (0, 12)


def test_no_trial_while_something_is_still_compiled(hands: Hands) -> None:
    two = Two(hands)
    for _ in range(100):
        two.budget.num_functions += 1
        assert two.call() == [Arm.COMPILED]
    assert Arm.EAGER in two.call(40)


def test_a_trial_all_the_same_where_something_is_compiled_at_each_call(hands: Hands) -> None:
    two = Two(hands)
    for _ in range(300):
        two.budget.num_functions += 1
        two.call()
    assert two.call() == [Arm.EAGER]


def test_a_block_in_which_something_was_compiled_does_not_count(hands: Hands) -> None:
    two = Two(hands)
    two.call(20)
    for _ in range(3):
        two.budget.num_functions += 1
        hands.now += 0.125
        two.call(4)
    two.call(100)
    verdict = verdict_of(two.faster)
    assert verdict is not None and verdict.seconds == {Arm.COMPILED: SLOW, Arm.EAGER: FAST}


def test_calls_without_gradients_are_tried_apart(hands: Hands) -> None:
    two = Two(hands)
    compiled, eager = two.faster._compiled, two.faster._eager
    for _ in range(150):
        two.faster._compiled, two.faster._eager = compiled, eager
        two.call()
        two.faster._compiled, two.faster._eager = eager, compiled  # there it is compiled that is faster
        with torch.no_grad():
            two.call()
    recording, plain = (decision.verdict for decision in two.faster.decisions)
    assert recording is not None and recording.chosen is Arm.EAGER and recording is verdict_of(two.faster)
    assert plain is not None and plain.chosen is Arm.COMPILED


def test_what_acts_without_gradients_alone_is_tried(hands: Hands) -> None:
    two = Two(hands)
    with torch.no_grad(), listening() as events:
        two.call(120)
        assert two.call(3) == [Arm.EAGER] * 3
    [found] = [event.what for event in events if isinstance(event.what, Uncompiled)]
    assert found.detail.startswith("step without gradients: 0.977 ms")


def test_one_trial_at_a_time(hands: Hands) -> None:
    first, second = Two(hands), Two(hands)
    seen = [(first.call()[0], second.call()[0]) for _ in range(70)]
    assert (Arm.EAGER, Arm.COMPILED) in seen and (Arm.COMPILED, Arm.EAGER) not in seen
    assert verdict_of(first.faster) is None
    first.call(2)
    second.call(120)
    assert verdict_of(second.faster) is not None


@pytest.mark.parametrize(("compiled", "eager", "chosen"), [(SLOW, FAST, Arm.EAGER), (FAST, SLOW, Arm.COMPILED)])
def test_many_small_ones_are_tried_as_one(compiled: float, eager: float, chosen: Arm, hands: Hands) -> None:
    """Each is a tenth of a step, too little to be told from all the rest."""
    many = [Two(hands, compiled, eager) for _ in range(10)]
    for _ in range(75):
        arms = {two.call()[0] for two in many}
    assert arms == {chosen} and all(verdict_of(two.faster) is not None for two in many)


def test_another_may_be_tried_where_one_is_not_called_any_more(hands: Hands) -> None:
    first, second = Two(hands), Two(hands)
    first.call(40)
    hands.now += 100.0
    second.call(120)
    assert verdict_of(first.faster) is None and verdict_of(second.faster) is not None
    assert first.call(5) == [Arm.COMPILED] * 5


class Watching(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def hooked() -> AbstractContextManager[Any]:
    return saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "a function mode": Watching,
    "saved-tensors hooks": hooked,
    "a backward that a compiler of the user's sees": lambda: gradc.compiled_autograd.enable(lambda graph: graph),
    "a backward that has to be captured": lambda: gradc.compiled_autograd.enable(gradc.compile(fullgraph=True)),
    "forward AD": torch.autograd.forward_ad.dual_level,
}


@pytest.mark.parametrize("state", STATES)
def test_no_trial_in_a_state_that_something_else_looks_on_in(state: str, hands: Hands) -> None:
    two = Two(hands)
    with STATES[state]():
        assert two.call(300) == [Arm.COMPILED] * 300
    two.call(40)
    with STATES[state]():
        assert two.call(100) == [Arm.COMPILED] * 100
    two.call(100)
    verdict = verdict_of(two.faster)
    assert verdict is not None and verdict.seconds == {Arm.COMPILED: SLOW, Arm.EAGER: FAST}


def test_no_trial_in_another_thread(hands: Hands) -> None:
    two = Two(hands)
    two.call()
    thread = threading.Thread(target=two.call, args=(300,))
    thread.start()
    thread.join()
    assert two.calls == [Arm.COMPILED] * 301


def test_what_checkpoint_counts_stays_compiled(hands: Hands) -> None:
    two = Two(hands)
    two.call(120)
    with hooked():
        assert two.call() == [Arm.COMPILED]
    assert two.call() == [Arm.EAGER]


def test_an_error_comes_through_and_spoils_its_block(hands: Hands) -> None:
    two = Two(hands)
    two.call(40)
    compiled, eager = two.faster._compiled, two.faster._eager

    def fails() -> None:
        hands.now += 0.125
        raise ValueError("the user's")

    for _ in range(2):
        two.faster._compiled = two.faster._eager = fails
        with pytest.raises(ValueError, match="the user's"):
            two.faster()
        two.faster._compiled, two.faster._eager = compiled, eager
        two.call(3)
    two.call(100)
    verdict = verdict_of(two.faster)
    assert verdict is not None and verdict.seconds == {Arm.COMPILED: SLOW, Arm.EAGER: FAST}


def test_after_a_long_time_it_is_tried_again(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profitability, "_CALLS_UNTIL_NEXT", 200)
    two = Two(hands)
    two.call(200)
    two.faster._compiled, two.faster._eager = Two(hands, FAST).faster._compiled, Two(hands, 1.0, SLOW).faster._eager
    two.call(250)
    verdict = verdict_of(two.faster)
    assert verdict is not None and verdict == Verdict(Arm.COMPILED, {Arm.COMPILED: FAST, Arm.EAGER: SLOW})


def test_reset_forgets(hands: Hands) -> None:
    two = Two(hands)
    two.call(120)
    gradc.reset()
    assert verdict_of(two.faster) is None and two.call(10) == [Arm.COMPILED] * 10


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 1))


def losses(module: nn.Module, call: Callable[[Tensor], Tensor], hands: Hands) -> list[Tensor]:
    """Of 150 training steps, in which calls take longer where they are compiled."""
    torch.manual_seed(1)
    x, optimizer, found = torch.randn(5, 3), torch.optim.SGD(module.parameters(), lr=0.1), []
    for _ in range(150):
        before = num_compared() + num_counted()
        loss = call(x).square().sum()
        hands.now += FAST if num_compared() + num_counted() > before else SLOW
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
    return found


def test_a_module_trains_as_in_eager_through_the_trial_and_behind_it(hands: Hands) -> None:
    eager, module = small(), small()
    expected = losses(eager, eager, hands)
    compiled = gradc.compile(module, options=COMPARED)
    assert all(map(same_bits, losses(module, compiled, hands), expected))
    assert all(map(same_bits, module.state_dict().values(), eager.state_dict().values()))
    assert num_compared() >= 30 and num_counted() > 20
    assert verdict_of(compiled) is not None and not gradc.counters["fallbacks"]


@pytest.mark.skipif(not native.is_built(), reason="the entry is native")
def test_the_native_entry_counts_tells_and_asks(hands: Hands) -> None:
    module = small()
    compiled = gradc.compile(module, options=COMPARED)
    losses(module, compiled, hands)
    decision, *_ = faster._entries[compiled._gradc_call].decisions
    counted, left = num_counted(), decision.num_rest
    assert decision.quota[0] > 0  # else the calls below do not show the native way
    for _ in range(250):  # the quota ends twice
        compiled(torch.ones(5, 3))
    assert (num_counted() - counted, left - decision.num_rest) == (250, 250) and decision.quota[0] > 0
    told: list[Any] = []
    with at_each_pass(told.append):
        compiled(torch.ones(5, 3))
    assert [found.kind for found in told] == ["slower than eager"] and num_counted() - counted == 251
    with saved_tensors_hooks(lambda x: x, lambda x: x):  # as checkpoint has them: it was compiled, so it is again
        compiled(torch.ones(5, 3))
    assert num_counted() - counted == 251
    gradc.counters.clear()
    compiled(torch.ones(5, 3))
    assert num_counted() == 1
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        compiled(torch.ones(5, 2))
    gradc.reset()
    assert decision.quota[0] == 0 and verdict_of(compiled) is None


def num_captured() -> int:
    counted = gradc.counters["compiled_autograd"]
    return counted["captures"] + counted["hits"]


def test_the_backward_of_what_runs_eagerly_is_not_captured_unless_that_pays(hands: Hands) -> None:
    eager, module = small(), small()
    expected = losses(eager, eager, hands)
    compiled = gradc.compile(module, options=COMPARED)
    with gradc.compiled_autograd.enable():
        assert all(map(same_bits, losses(module, compiled, hands), expected))
        num_tried = num_captured() - (150 - num_compared() - num_counted())
        assert num_counted() > 20 and num_tried == 18  # 6 of them to begin with; the others took as long as eager
        before = num_captured()
        compiled(torch.randn(5, 3)).sum().backward()
        num_left = num_compared() + num_counted() - num_tried
        assert gradc.counters["compiled_autograd"]["passes of what runs eagerly"] == num_left
    assert num_captured() == before
    with gradc.compiled_autograd.enable():  # of another program
        eager(torch.randn(5, 3)).sum().backward()
    assert num_captured() == before + 1


def test_the_backward_of_a_model_that_runs_eagerly_is_captured_where_that_pays(hands: Hands) -> None:
    module, x = small(), torch.randn(5, 3)
    compiled = gradc.compile(module, options=COMPARED)
    with gradc.compiled_autograd.enable():
        for _ in range(200):
            before, captured = num_compared() + num_counted(), num_captured()
            compiled(x).sum().backward()
            is_eager, is_captured = num_compared() + num_counted() > before, num_captured() > captured
            hands.now += (FAST / 2 if is_captured else FAST) if is_eager else SLOW
        verdict = verdict_of(compiled)
        assert verdict is not None and verdict.chosen is Arm.CAPTURED and is_eager and is_captured
    before = num_captured()
    compiled(x).sum().backward()
    assert num_captured() == before


@pytest.mark.skipif(not native.is_built(), reason="the entry is native")
def test_the_native_entry_captures_where_that_was_chosen(hands: Hands) -> None:
    """Beside another, which suspends captures at each of its calls."""
    eager, captured = (gradc.compile(small(), options=COMPARED) for _ in range(2))
    x = torch.randn(5, 3)
    with gradc.compiled_autograd.enable():
        for compiled, arm in ((eager, Arm.EAGER), (captured, Arm.CAPTURED)):
            decision, *_ = faster._entries[compiled._gradc_call].decisions
            decision._obey(Verdict(arm, {Arm.COMPILED: SLOW, Arm.EAGER: FAST, arm: FAST}))
            decision.num_rest = 1000
        for _ in range(20):
            before = num_captured()
            eager(x).sum().backward()
            assert num_captured() == before
            captured(x).sum().backward()
            assert num_captured() == before + 1
    assert decision.quota[0] > 0 and decision.num_rest == 980 and num_counted() == 40


def test_what_runs_compiled_again_has_its_backward_captured(hands: Hands) -> None:
    eager, compiled = (gradc.compile(small(), options=COMPARED) for _ in range(2))
    losses(eager, eager, hands)
    with gradc.compiled_autograd.enable():
        eager(torch.randn(5, 3)).sum().backward()
        assert num_captured() == 0 and num_counted() > 20
        gradc.reset()
        losses(eager, compiled, hands)
    assert num_captured() > 0


def test_a_step_that_runs_backward_itself(hands: Hands) -> None:
    module, x = small(), torch.randn(5, 3)

    @gradc.compile(options=COMPARED)
    def step() -> None:
        module(x).sum().backward()

    for _ in range(150):
        before = num_compared() + num_counted()
        step()
        hands.now += FAST if num_compared() + num_counted() > before else SLOW
    assert num_counted() > 20 and verdict_of(step) is not None


@pytest.mark.parametrize(
    ("compiled", "eager", "captured", "chosen"),
    [
        (8.0, 4.0, 2.0, Arm.CAPTURED),
        (4.0, 4.5, 3.0, Arm.CAPTURED),
        (8.0, 4.0, 5.0, Arm.EAGER),
        (8.0, 4.0, 4.0, Arm.EAGER),
        (4.0, 4.5, 4.0, Arm.COMPILED),
    ],
)
def test_backward_passes_alone_may_pay(compiled: float, eager: float, captured: float, chosen: Arm, hands: Hands) -> None:
    two = Two(hands, *(seconds * SLOW for seconds in (compiled, eager, captured)))
    two.call(250)
    verdict = verdict_of(two.faster)
    assert verdict is not None and verdict.chosen is chosen and Arm.CAPTURED in verdict.seconds
    counted = num_counted()
    assert two.call(300) == [chosen] * 300 and num_counted() - counted == (0 if chosen is Arm.COMPILED else 300)


def test_backward_passes_alone_are_not_tried_where_compiled_is_clearly_faster(hands: Hands) -> None:
    two = Two(hands, FAST, SLOW, SLOW)
    assert Arm.CAPTURED not in two.call(250)


def test_backward_passes_alone_are_not_tried_without_gradients(hands: Hands) -> None:
    two = Two(hands, SLOW, FAST, FAST / 2)
    with torch.no_grad():
        assert Arm.CAPTURED not in two.call(250)


def test_a_trial_of_captures_begins_with_a_full_credit(hands: Hands) -> None:
    two = Two(hands, SLOW, FAST, FAST / 2)
    CREDIT.pay(100.0)
    while Arm.CAPTURED not in two.call():
        assert not CREDIT.allows() or len(two.calls) > 60
    assert CREDIT.allows()


def test_a_step_whose_backward_alone_is_captured(hands: Hands) -> None:
    """Bits, state and draws are eager's, whichever arm a call goes to."""
    theirs, ours = small(), small()

    def step_of(module: nn.Module) -> Callable[[Tensor], Tensor]:
        optimizer = torch.optim.AdamW(module.parameters())

        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = module(x).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    eager, compiled = step_of(theirs), gradc.compile(step_of(ours), options=COMPARED)
    for number in range(200):
        x = torch.randn(4 + number % 3, 3)
        torch.manual_seed(number)
        expected = eager(x)
        torch.manual_seed(number)
        before, captured = num_compared() + num_counted(), num_captured()
        assert same_bits(compiled(x), expected)
        is_eager, is_captured = num_compared() + num_counted() > before, num_captured() > captured
        hands.now += (FAST / 2 if is_captured else FAST) if is_eager else SLOW
        assert all(map(same_bits, ours.state_dict().values(), theirs.state_dict().values()))
    verdict = verdict_of(compiled)
    assert verdict is not None and verdict.chosen is Arm.CAPTURED and num_counted() > 20 and is_captured


def test_checkpoint_around_what_is_slower(hands: Hands) -> None:
    module = small()
    compiled = gradc.compile(module, options=COMPARED)
    losses(module, compiled, hands)
    assert num_counted() > 20

    def grads(call: Callable[..., Any]) -> list[Tensor]:
        torch.manual_seed(2)
        x = torch.ones(2, 3, requires_grad=True)
        return list(torch.autograd.grad(checkpoint(call, x, use_reentrant=False).sum(), [x, *module.parameters()]))

    assert all(map(same_bits, grads(compiled), grads(module)))


def test_explain_says_what_was_chosen(hands: Hands) -> None:
    module = small()
    compiled = gradc.compile(module, options=COMPARED)
    losses(module, compiled, hands)
    explanation = gradc.explain(compiled)(torch.randn(5, 3))
    text = "runs eagerly: 0.977 ms from call to call compiled, 0.488 ms eagerly"
    assert explanation.verdict is not None and text in str(explanation)
    assert gradc.explain(compiled)(torch.randn(5, 3)).verdict is None  # explain forgets all, as gradc.reset does


@pytest.mark.parametrize("asked", [{"fullgraph": True}, {"backend": "eager"}, {"options": {"compare_with_eager": False}}])
def test_what_is_never_compared(asked: dict[str, Any], hands: Hands) -> None:
    with gradc.config.patch(compare_with_eager=True):
        compiled = gradc.compile(small(), **asked)
    losses(compiled, compiled, hands)
    assert (num_compared(), num_counted()) == (0, 0)


@pytest.mark.parametrize("value", [0, 1, None, "yes"])
def test_values_that_are_none(value: object) -> None:
    with pytest.raises(ConfigError, match="compare_with_eager"):
        gradc.compile(small(), options={"compare_with_eager": value})
    with pytest.raises(ConfigError, match="compare_with_eager"), contextlib.ExitStack() as stack:
        stack.enter_context(gradc.config.patch(compare_with_eager=value))


def test_explain_times_a_step_where_asked(hands: Hands) -> None:
    module, x = small(), torch.randn(5, 3)

    def step() -> None:
        hands.now += SLOW
        module(x).sum().backward()

    compiled = gradc.compile(step, options=COMPARED)
    with gradc.config.patch(compare_with_eager=True):
        explanation = gradc.explain(compiled, is_timed=True)()
    assert explanation.verdict is not None and explanation.verdict.chosen is Arm.COMPILED
    assert "runs compiled: 0.977 ms from call to call compiled, 0.977 ms eagerly" in str(explanation)
    assert gradc.explain(compiled)().verdict is None


def test_a_function_passes_for_what_was_compiled_wherever_that_is_looked_at(hands: Hands) -> None:
    def plain(x: Tensor, times: int = 2) -> Tensor:
        """Some words."""
        return (x * times).sin()

    function, x = gradc.compile(plain, options=COMPARED), torch.randn(3, requires_grad=True)
    for _ in range(120):
        before = num_compared() + num_counted()
        assert same_bits(function(x, times=3), plain(x, 3))
        hands.now += FAST if num_compared() + num_counted() > before else SLOW
    assert num_counted() > 20 and (function.__name__, function.__doc__) == ("plain", "Some words.")
    with pytest.warns(UserWarning, match="compiled by gradc already"):
        assert torch.compile(function, backend="eager") is function
    gradc.counters.clear()
    again = gradc.compile(function, fullgraph=True, options={"compare_with_eager": False})
    outer = gradc.compile(lambda x: function(x) + 1, fullgraph=True)
    assert same_bits(again(x), plain(x)) and same_bits(outer(x), plain(x) + 1)
    assert (num_counted(), num_compared()) == (0, 0)


def test_no_trial_while_something_waits_for_its_budget(hands: Hands) -> None:
    two = Two(hands)
    for _ in range(100):
        two.budget.num_refused += 1
        assert two.call() == [Arm.COMPILED]
