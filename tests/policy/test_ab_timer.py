"""The faster of two is chosen from the times of blocks of calls, and the compiled one in doubt."""

from __future__ import annotations

import pytest

from gradc.policy.ab_timer import ABTimer, Arm, Verdict


def of_both(chosen: Arm, compiled: float, eager: float) -> Verdict:
    return Verdict(chosen, {Arm.COMPILED: compiled, Arm.EAGER: eager})


class Program:
    """Calls that take ``seconds`` by arm, of which ``extra`` is taken longer by the calls of one block; in units of seconds."""

    def __init__(
        self,
        compiled: float,
        eager: float,
        extra: dict[int, float] | None = None,
        first: Arm = Arm.COMPILED,
        unit: float = 1e-3,
    ) -> None:
        self.seconds, self.extra = {Arm.COMPILED: compiled, Arm.EAGER: eager}, extra or {}
        self.now, self.num_calls, self.num_eager = 0.0, 0, 0
        self.unit = unit
        self.trial = ABTimer(lambda: unit * self.now, first=first)

    def call(self) -> None:
        arm = self.trial.next()
        self.now += self.seconds[arm] + self.extra.get(self.num_calls // 6, 0.0)
        self.num_calls += 1
        self.num_eager += arm is Arm.EAGER

    def run(self) -> Verdict:
        while self.trial.verdict is None:
            self.call()
            assert self.num_calls < 1000
        verdict = self.trial.verdict
        return Verdict(verdict.chosen, {arm: round(seconds / self.unit, 6) for arm, seconds in verdict.seconds.items()})


def test_eager_is_chosen_where_it_is_faster_with_both_figures() -> None:
    program = Program(0.5, 0.25)
    assert program.run() == of_both(Arm.EAGER, 0.5, 0.25) and program.num_calls == 61
    assert str(program.trial.verdict) == "0.5 ms from call to call compiled, 0.25 ms eagerly"


def test_what_is_clearly_faster_compiled_is_soon_left_alone() -> None:
    program = Program(0.25, 0.5)
    assert program.run() == of_both(Arm.COMPILED, 0.25, 0.5)
    assert (program.num_calls, program.num_eager) == (25, 12)


def test_a_twentieth_is_enough_a_fiftieth_in_all_pairs_and_less_never() -> None:
    assert Program(1.0625, 1.0).run().chosen is Arm.EAGER
    assert Program(1.0625, 1.0, {1: 1.0}).run().chosen is Arm.EAGER
    assert Program(1.03125, 1.0).run().chosen is Arm.EAGER
    assert Program(1.03125, 1.0, {1: 1.0}).run().chosen is Arm.COMPILED
    assert Program(1.015625, 1.0).run().chosen is Arm.COMPILED


@pytest.mark.parametrize("block", range(10))
def test_one_block_that_was_disturbed_decides_nothing(block: int) -> None:
    assert Program(0.5, 0.25, {block: 8.0}).run().chosen is Arm.EAGER
    assert Program(0.25, 0.5, {block: 8.0}).run().chosen is Arm.COMPILED


def test_a_machine_that_grows_slower_does_so_to_both() -> None:
    assert Program(1.0, 1.0, {block: 0.25 * block for block in range(10)}).run().chosen is Arm.COMPILED
    assert Program(2.0, 1.0, {block: 0.25 * block for block in range(10)}).run().chosen is Arm.EAGER


@pytest.mark.parametrize("num_calls", [2, 3, 6])
def test_several_calls_in_a_step_of_which_the_last_has_the_backward(num_calls: int) -> None:
    program = Program(0.25, 0.5)
    while program.trial.verdict is None:
        program.call()
        program.now += 10.0 if program.num_calls % num_calls == 0 else 0.0
    assert program.trial.verdict.seconds[Arm.COMPILED] - program.trial.verdict.seconds[Arm.EAGER] == pytest.approx(-0.25e-3)


def test_a_block_that_something_came_into_begins_anew() -> None:
    program = Program(0.5, 0.25)
    for _ in range(4):
        program.call()
    program.now += 1000.0
    program.trial.spoil()
    assert program.run() == of_both(Arm.EAGER, 0.5, 0.25)


def test_what_takes_more_than_twice_as_long_is_soon_left_to_eager() -> None:
    program = Program(1.0, 0.25)
    assert program.run() == of_both(Arm.EAGER, 1.0, 0.25)
    assert (program.num_calls, program.num_eager) == (25, 13)


@pytest.mark.parametrize("num_calls", [4, 5, 7, 8, 13, 32])
def test_an_episode_between_calls_counts_to_no_block(num_calls: int) -> None:
    """Blocks have unequal numbers of them."""
    for slow, fast, chosen in ((0.5, 0.25, Arm.EAGER), (0.25, 0.5, Arm.COMPILED), (0.5, 0.5, Arm.COMPILED)):
        program = Program(slow, fast)
        while program.trial.verdict is None:
            program.call()
            program.now += 4.0 if program.num_calls % num_calls == 0 else 0.0
        assert program.trial.verdict.chosen is chosen, (num_calls, program.trial.verdict)


@pytest.mark.parametrize("blocks", [(1, 5), (2, 6), (1, 6, 9)])
def test_where_two_or_three_pairs_were_disturbed_there_are_more(blocks: tuple[int, ...]) -> None:
    program = Program(1.125, 1.0, dict.fromkeys(blocks, 1.0))
    assert program.run() == of_both(Arm.EAGER, 1.125, 1.0) and program.num_calls == 133
    assert Program(1.0, 1.125, dict.fromkeys((0, 3), 1.0)).run() == of_both(Arm.COMPILED, 1.0, 1.125)


def test_slow_calls_lose_half_a_second_and_a_call_for_each_of_two_blocks() -> None:
    program = Program(2.0, 0.25, first=Arm.EAGER, unit=1.0)
    assert program.run() == of_both(Arm.EAGER, 2.0, 0.25)
    assert (program.num_calls, program.num_eager) == (15, 13)
    assert Program(1.0, 1.0, first=Arm.EAGER, unit=1.0).run().chosen is Arm.COMPILED


def test_slow_calls_of_unequal_length_are_compared_with_the_longest() -> None:
    program = Program(0.1, 0.1, first=Arm.EAGER, unit=1.0)
    while program.trial.verdict is None:
        program.call()
        program.now += 2.0 if program.num_calls % 2 else 0.0
    assert program.trial.verdict.chosen is Arm.COMPILED


def test_where_calls_come_in_rounds_the_long_time_at_their_end_decides() -> None:
    """The steps of an episode are made by both arms; it is the backward pass at its end that is slower compiled."""
    program, num_compiled = Program(0.1, 0.1), 0
    trials = [program.trial]
    while program.trial.verdict is None or (following := program.trial.in_rounds()) is not None:
        if program.trial.verdict is not None:
            program.trial = following
            trials.append(following)
        before = program.num_eager
        program.call()
        num_compiled += program.num_eager == before
        if program.num_calls % 17 == 0:
            program.now += 8.0 + 0.1 * num_compiled
            num_compiled = 0
    assert [trial.verdict.chosen for trial in trials if trial.verdict] == [Arm.COMPILED, Arm.EAGER]


def test_one_long_time_is_no_round() -> None:
    """As Python's collector takes, or another process."""
    program = Program(1.0, 0.9)
    while program.trial.verdict is None:
        program.call()
        program.now += 10.0 * (program.num_calls == 9)
    assert program.trial.in_rounds() is None
