"""Messages below a logger's level in compiled code: no graph break, until somebody wants them."""

import functools
import logging
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import gradc
from gradc.bits import same_bits

logger = logging.getLogger("gradc.tests.loggers")


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture
def kept() -> Iterator[Kept]:
    gradc.reset()
    handler = Kept()
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


def debug(x: Tensor) -> Tensor:
    logger.debug("shape %s", x.shape)
    return x.sin()


def asked(x: Tensor) -> Tensor:
    if logger.isEnabledFor(logging.INFO):
        logger.info("mean %s", x.mean())
    return x.sin()


def by_number(x: Tensor) -> Tensor:
    logger.log(logging.INFO, "a number")
    return x.sin()


class Adapted:
    adapter = logging.LoggerAdapter(logger, {})

    def __call__(self, x: Tensor) -> Tensor:
        self.adapter.info("adapted")
        return x.sin()


FUNCTIONS: list[Callable[[Tensor], Tensor]] = [debug, asked, by_number, Adapted()]


@pytest.mark.parametrize("function", FUNCTIONS, ids=["debug", "asked", "by number", "adapter"])
def test_what_is_not_logged_is_no_break_until_it_is(function: Callable[[Tensor], Tensor], kept: Kept) -> None:
    compiled, x = gradc.compile(function), torch.ones(3)
    of_run: dict[Callable[[Tensor], Tensor], list[list[str]]] = {compiled: [], function: []}
    for level in (logging.WARNING, logging.DEBUG, logging.ERROR, logging.INFO):
        logger.setLevel(level)
        for run, texts in of_run.items():
            kept.texts = []
            assert same_bits(run(x), x.sin())
            texts.append(kept.texts)
        assert level != logging.WARNING or not gradc.counters["uncompiled"]
    assert of_run[compiled] == of_run[function]
    assert [len(texts) for texts in of_run[compiled]] == [0, 1, 0, 0 if function is debug else 1]


def test_logging_that_is_disabled_as_a_whole(kept: Kept) -> None:
    logger.setLevel(logging.DEBUG)
    logging.disable(logging.INFO)
    try:
        compiled, x = gradc.compile(debug), torch.ones(3)
        compiled(x)
        assert not gradc.counters["uncompiled"]
    finally:
        logging.disable(logging.NOTSET)
    compiled(x)
    assert kept.texts == ["shape torch.Size([3])"]


def test_a_method_that_is_replaced(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, x, seen = gradc.compile(debug), torch.ones(3), []
    compiled(x)
    monkeypatch.setattr(logger, "debug", lambda *args: seen.append(args))
    compiled(x)
    assert len(seen) == 1
    monkeypatch.undo()
    monkeypatch.setattr(logging.Logger, "isEnabledFor", lambda self, level: True)
    compiled(x)
    assert len(kept.texts) == 1


class Loud(logging.Logger):
    def isEnabledFor(self, level: int) -> bool:
        return True


def test_a_logger_of_another_class() -> None:
    loud, kept = Loud("loud", logging.ERROR), Kept()
    loud.addHandler(kept)

    def function(x: Tensor) -> Tensor:
        loud.debug("loud")
        return x.sin()

    compiled, x = gradc.compile(function), torch.ones(3)
    for _ in range(3):
        compiled(x)
    assert kept.texts == ["loud"] * 3


def test_wrong_arguments_raise_as_in_python() -> None:
    def function(x: Tensor) -> Tensor:
        logger.debug()
        return x.sin()

    for run in (function, gradc.compile(function)):
        with pytest.raises(TypeError, match=r"debug\(\) missing 1 required positional argument"):
            run(torch.ones(2))


@functools.lru_cache(None)
def warn_once(self, *args) -> None:
    self.warning(*args)


def test_a_message_that_is_said_once(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """As transformers gives it to all loggers."""
    monkeypatch.setattr(logging.Logger, "warn_once", warn_once, raising=False)

    def function(x: Tensor, name: str) -> Tensor:
        logger.warn_once(f"no {name}")  # type: ignore[attr-defined]
        return x.sin()

    compiled, x, said = gradc.compile(function), torch.randn(3), []
    for run in (function, compiled):
        warn_once.cache_clear()
        for name in ("loss", "loss", "mask", "loss"):
            assert same_bits(run(x, name), x.sin())
        warn_once.cache_clear()
        run(x, "loss")
        said.append((kept.texts[:], warn_once.cache_info()))
        kept.texts.clear()
    assert said[0] == said[1]
    assert said[0][0] == ["no loss", "no mask", "no loss"]
    assert not gradc.counters["uncompiled"]
