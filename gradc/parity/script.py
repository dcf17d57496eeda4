"""The runs of a whole training script, as it is: what is compared is what each step of an optimizer finds and leaves.

    ScriptRuns(redirection, path, words, number of steps).eagerly() -> what was seen after each step of an optimizer

A script that calls torch.compile compiles with the compiler that is asked for. In another one the models that its optimizers
train are compiled in place after the first step, when they are known, so that the comparison begins with the second.
"""

from __future__ import annotations

import contextlib
import gc
import io
import runpy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from gradc.errors import ConfigError
from gradc.parity.against import Redirection
from gradc.parity.differences import Value
from gradc.parity.hooks import hearing
from gradc.parity.observe import observe
from gradc.parity.recording import Call, Recorder
from gradc.parity.runs import Seen
from gradc.parity.stages import Stages, in_words
from gradc.parity.state import restoring
from gradc.torch_private.dynamo import in_a_frame, is_compiled
from gradc.torch_private.reexecution import nothing_compiled


class ScriptRuns:
    """
    Arguments:
        words: the command line of the script, behind its name.
        num_steps: after how many steps of optimizers it is ended.
    """

    def __init__(self, redirection: Redirection, path: Path, words: Sequence[str], num_steps: int) -> None:
        self._redirection, self._path, self._words, self._num_steps = redirection, path, words, num_steps
        self.stages = Stages()
        self._is_shown = True

    def __str__(self) -> str:
        return str(self._path)

    def eagerly(self) -> Seen:
        return self._run("", _Watch(self._num_steps), is_eager=True)

    def compiled(self) -> Seen:
        return self._run("", _Watch(self._num_steps, self._in_place), is_eager=False)

    def recorded(self, number: int, *, is_eager: bool) -> tuple[list[Call], dict[str, Value]]:
        watch = _Watch(number, None if is_eager else self._in_place, records=number)
        seen = self._run("recorded ", watch, is_eager=is_eager)
        return watch.recorder.calls, seen[-1]

    @property
    def _in_place(self) -> Redirection | None:
        return None if self._redirection.num_calls else self._redirection

    def _run(self, how: str, watch: _Watch, *, is_eager: bool) -> Seen:
        """Only the first run prints."""
        self._redirection.is_eager = is_eager
        output = sys.stderr if self._is_shown else io.StringIO()
        self._is_shown = False
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.stages.run(f"{how}{in_words(is_eager)}"))
            stack.enter_context(restoring(()))
            stack.enter_context(contextlib.redirect_stdout(output))
            stack.enter_context(as_main(self._path, self._words))
            stack.enter_context(nothing_compiled() if is_eager else contextlib.nullcontext())
            stack.enter_context(watch.watching())
            _run_to_the_end(self._path)
        gc.collect()  # so that the next run meets its own models only
        return watch.seen


class _Enough(BaseException):
    """Ends the script."""


class _Watch:
    """Looks at what each step of an optimizer leaves.

    Arguments:
        in_place: compiles the models after the first step; None: they are left as they are.
        records: the number of the step that is recorded; 0: none.
    """

    def __init__(self, num_steps: int, in_place: Redirection | None = None, records: int = 0) -> None:
        self.seen: Seen = []
        self.recorder = Recorder()
        self._num_steps, self._in_place, self._records = num_steps, in_place, records
        self._holders: dict[str, Any] = {}
        self._optimizers: list[Optimizer] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        handle = register_optimizer_step_post_hook(self._after_step)
        try:
            with contextlib.ExitStack() as self._recording:
                self._begin(number=1)
                yield
        finally:
            handle.remove()

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._recording.close()
        if not any(optimizer is each for each in self._optimizers):
            self._add(optimizer)
        self.seen.append(observe((), self._holders) | self._heard.seen())
        if len(self.seen) == self._num_steps:
            raise _Enough
        self._begin(number=len(self.seen) + 1)

    def _begin(self, number: int) -> None:
        """Hooks of what the first step trains are heard from the second on."""
        self._heard = self._recording.enter_context(hearing(self._holders))
        if number == self._records:
            self._recording.enter_context(self.recorder)

    def _add(self, optimizer: Optimizer) -> None:
        number = len(self._optimizers)
        self._optimizers.append(optimizer)
        models = models_of(optimizer)
        held = {id(parameter) for model in models for parameter in model.parameters()}
        for model in models:
            self._hold(type(model).__name__, model)
            if self._in_place is not None and not any(model is each for each in [*self._holders.values()][:-1]):
                _compile_in_place(model, self._in_place)
        alone = [parameter for parameter in parameters_of(optimizer) if id(parameter) not in held]
        self._hold(f"parameters of optimizer {number}" if number else "parameters", alone)
        self._hold(f"optimizer {number}" if number else "optimizer", optimizer)

    def _hold(self, name: str, value: Any) -> None:
        if any(value is each for each in self._holders.values()):
            return
        number = sum(each.split(" #")[0] == name for each in self._holders)
        self._holders[f"{name} #{number + 1}" if number else name] = value


def parameters_of(optimizer: Optimizer) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def models_of(optimizer: Optimizer) -> list[nn.Module]:
    """The largest modules that hold its parameters, in the order of those."""
    place = {id(parameter): number for number, parameter in enumerate(parameters_of(optimizer))}
    modules = [each for each in gc.get_objects() if issubclass(type(each), nn.Module) and not _is_wrapper(each)]
    firsts = {id(each): min((place[id(p)] for p in each.parameters() if id(p) in place), default=-1) for each in modules}
    found = [each for each in modules if firsts[id(each)] >= 0]
    inner = {id(part) for each in found for part in each.modules() if part is not each}
    return sorted((each for each in found if id(each) not in inner), key=lambda each: firsts[id(each)])


def _compile_in_place(model: nn.Module, redirection: Redirection) -> None:
    """Not by ``model.compile()``: of a Sequential, that would compile the parts that are the user's own classes only."""
    model.forward = redirection.compile(in_a_frame(model.forward))


def _is_wrapper(module: nn.Module) -> bool:
    """True for torch.compile's."""
    return is_compiled(module) or "_orig_mod" in module._modules


@contextlib.contextmanager
def as_main(path: Path, words: Sequence[str]) -> Iterator[None]:
    """The script's command line and folder. Modules of that folder are forgotten afterwards, for they may hold models, too."""
    folder, argv, known = str(path.parent.resolve()), sys.argv, {*sys.modules}
    sys.argv = [str(path), *words]
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.argv = argv
        sys.path.remove(folder)
        for name in {*sys.modules} - known:
            if folder in map(str, Path(getattr(sys.modules[name], "__file__", None) or "").parents):
                del sys.modules[name]


def _run_to_the_end(path: Path) -> None:
    try:
        runpy.run_path(str(path), run_name="__main__")
    except _Enough:
        return
    except SystemExit as end:
        if end.code not in (None, 0):
            text = f"it ends itself with {end.code!r}, before anything could be compared."
            raise ConfigError(f"gradc check {path}: {text}") from end
