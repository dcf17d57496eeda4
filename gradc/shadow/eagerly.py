"""One call, run in eager on copies of all that it may change; afterwards nothing can be seen of it.

    Run(target, args, kwargs).eagerly() -> Outcome        .again: what belongs to it, its backward, in the same way

The user's objects stay the same ones: for the time of the run, the copies lie in them in the place of tensors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from gradc import compiled_autograd
from gradc.ambient import modes_kept_on_error
from gradc.bits import same_bits
from gradc.shadow import process
from gradc.shadow.copies import Copies
from gradc.shadow.reachable_state import UnverifiableError, explore
from gradc.torch_private.reexecution import hooks_of_all_modules, nothing_compiled


@dataclasses.dataclass(frozen=True)
class Outcome:
    result: Any = None
    error: Exception | None = None

    def unwrap(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


def outcome_of(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
    try:
        return Outcome(function(*args, **kwargs))
    except Exception as error:
        return Outcome(error=error)


class Run:
    """
    Attributes:
        values_of_eager, settings_of_eager: what the run in eager left behind.

    Raises:
        UnverifiableError: if something cannot be copied.
    """

    def __init__(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.target, self.args, self.kwargs = target, args, kwargs
        self.home, self.names = _home(target), _names(target, args)
        self.copies = Copies()
        self.world = explore(self._roots(args, kwargs), self.home)
        for value in list(self.world.values.values()):
            self.copies.of(value)
        self.before = self.world.contents()
        self.settings_before = process.settings()
        self.values_of_compiled: dict[str, Any] = {}
        self.results: dict[str, tuple[weakref.ref[Tensor], int]] = {}

    def _roots(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
        hooks = [("hook", hook) for hook in hooks_of_all_modules()]
        return [*zip(self.names, args, strict=True), *kwargs.items(), ("", self.target), *hooks]

    def differentiable(self) -> list[tuple[Tensor, Tensor]]:
        """The tensors that came in and may get gradients, and what the gradients of their copies are asked for."""
        return [(tensor, leaf) for tensor in self.copies.tensors() if (leaf := self.copies.leaf_of(tensor)) is not None]

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Each once, under its first name."""
        seen: set[int] = set()
        for name, value in self.world.values.items():
            if isinstance(value, Tensor) and id(value) not in seen:
                seen.add(id(value))
                yield name, value

    def eagerly(self) -> Outcome:
        args, kwargs = self.copies.of(self.args), {name: self.copies.of(value) for name, value in self.kwargs.items()}
        with self._unseen(self.settings_before):
            outcome = outcome_of(modes_kept_on_error()(self.target), args, kwargs)
            self.settings_of_eager = process.settings()
            result = [("result", outcome.result)] if outcome.error is None else []
            self.values_of_eager = explore([*self._roots(args, kwargs), *result], self.home).values
        return outcome

    def values(self, outcome: Outcome) -> dict[str, Any]:
        """What the compiled call left behind."""
        self.values_of_compiled = explore([*self._roots(self.args, self.kwargs), ("result", outcome.result)], self.home).values
        return self.values_of_compiled

    def release_results(self) -> None:
        """What came out is held weakly from now on: its graph holds what watches it, which holds this."""
        tensors = {name: value for name, value in self.values_of_compiled.items() if isinstance(value, Tensor)}
        usual = {name: tensor for name, tensor in tensors.items() if not tensor.is_inference()}
        self.results = {name: (weakref.ref(tensor), tensor._version) for name, tensor in usual.items()}
        self.values_of_compiled = {}

    def tensors_that_came_out(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Those with a history, as the compiled call and as eager left them."""
        for name, mine in self.values_of_compiled.items():
            theirs = self.values_of_eager.get(name)
            if isinstance(mine, Tensor) and isinstance(theirs, Tensor) and mine.grad_fn and theirs.grad_fn:
                yield mine, theirs

    def what_views_were_taken_of(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The same of what did not come out, but views of it did: who writes into a view gives that a new history."""
        found = {}
        for mine, theirs in self.tensors_that_came_out():
            if mine._base is not None and theirs._base is not None and mine._base.grad_fn and theirs._base.grad_fn:
                found[id(mine._base)] = mine._base, theirs._base
        yield from found.values()

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor, bool]]:
        """What came in and what came out, eager's beside, and whether autograd knows of no write since."""
        yield from self.copies.pairs()
        for name, (result, version) in self.results.items():
            mine, theirs = result(), self.values_of_eager.get(name)
            if mine is not None and isinstance(theirs, Tensor) and not self.copies.has(mine):
                yield mine, theirs, mine._version == version

    def again(self, function: Callable[[], Any], settings: dict[str, Any], reads_what_is_not_saved: bool) -> Any:
        """Call what goes on with eager's run, from ``settings``.

        Raises:
            UnverifiableError: if the originals have other numbers by now, and nobody knows which of them eager would see.
        """
        asked = [(mine, theirs) for mine, theirs, is_untouched in self._pairs() if is_untouched or reads_what_is_not_saved]
        if not all(same_bits(mine.detach(), theirs.detach()) for mine, theirs in asked):
            raise UnverifiableError("written into in a way that autograd does not see")
        with self._unseen(settings):
            return function()

    def undo(self) -> None:
        """Put back what the compiled call changed."""
        self.world.install(self.before)
        self.copies.restore()
        process.put_back(self.settings_before)

    @contextlib.contextmanager
    def _unseen(self, settings: dict[str, Any]) -> Iterator[None]:
        """What eager does inside is done to copies; what it prints, warns and draws is not seen, and comes again."""
        contents, present, known = self.world.contents(), process.settings(), self.copies.known
        with contextlib.ExitStack() as stack:
            for context in (nothing_compiled(), compiled_autograd.disable(), _silence()):
                stack.enter_context(context)
            try:
                self.world.install([[(known(key), known(item)) for key, item in pairs] for pairs in contents])
                process.put_back(settings)
                yield
            finally:
                self.world.install(contents)
                process.put_back(present)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.showwarning = lambda *args, **kwargs: None
        yield


def _function_of(target: Any) -> Any:
    return inspect.unwrap(type(target).forward if isinstance(target, torch.nn.Module) else target)


def _home(target: Any) -> dict[str, Any] | None:
    """The globals of the file that the user wrote ``target`` in."""
    function = _function_of(target)
    namespace: dict[str, Any] | None = getattr(getattr(function, "__func__", function), "__globals__", None)
    name = (namespace or {}).get("__name__", "")
    is_library = name.partition(".")[0] in ("torch", "gradc", *sys.stdlib_module_names) and name != "__main__"
    return None if is_library else namespace


def _names(target: Any, args: tuple[Any, ...]) -> list[str]:
    """What the arguments are called where they come in."""
    with contextlib.suppress(TypeError, ValueError):
        function = target.forward if isinstance(target, torch.nn.Module) else target
        kinds = inspect.Parameter
        named = [p.name for p in inspect.signature(function).parameters.values() if p.kind is not kinds.VAR_POSITIONAL]
        return [*named[: len(args)], *(f"args[{i}]" for i in range(len(named), len(args)))]
    return [f"args[{i}]" for i in range(len(args))]
