"""What a call of compiled code costs before gradc is reached: fewer guards, no function in Python around a region."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from torch._dynamo import trace_rules
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.source import AttrSource, DictGetItemSource, NNModuleSource
from torch.nn.modules import module as nn_module

from gradc.torch_private.patches import Method, Patch, SkipFiles
from gradc.torch_private.weaver import around

AskForHooks = Callable[[Sequence[dict[Any, Any]]], Callable[[object], bool]]

_GLOBAL_HOOKS = (
    nn_module._global_forward_pre_hooks,
    nn_module._global_forward_hooks,
    nn_module._global_backward_pre_hooks,
    nn_module._global_backward_hooks,
)


def call_natively() -> Patch:
    """Let Dynamo's bytecode call a native region itself, where it would put a function around it that stops tracing.

    There is nothing to trace in a builtin function: what it calls in Python when in doubt is still wrapped.
    """
    return Patch(
        "call_natively",
        "A function in Python around each native region would cost more than the rest of a small call.",
        (around(OutputGraph, "install_global_unsafe", _install),),
    )


def _install(original: Method, self: Any, name: str, value: Any) -> None:
    inner = getattr(value, "_torchdynamo_orig_callable", None)
    if inner is not None and getattr(inner, "__name__", "") == "gradc_region":
        value = functools.partial(inner) if _would_crash(len(self.graphargs)) else inner
    original(self, name, value)


def _would_crash(num_arguments: int) -> bool:
    """Whether Python crashes once it has specialised a call of a builtin function with so many arguments.

    Python 3.11 then skips a CALL of known length, but one of more than 255 arguments has an EXTENDED_ARG before it. The
    compiler of Python's own makes no such call; Dynamo's bytecode does.
    """
    return sys.version_info < (3, 12) and num_arguments > 255


def guard_module_hooks(make_guard: Callable[[], Any], ask_for_hooks: AskForHooks) -> Patch:
    """One guard for all hooks of a module and of those below it.

    ``make_guard`` makes it: its ``ask``, called with the module, is true if no dictionary of hooks of those that were added by
    ``add(names of the modules that lead there, attribute)`` holds one. Where that is None, Dynamo's own serve, one for each
    dictionary. ``ask_for_hooks`` makes what tells whether some of the given dictionaries hold hooks just if some do now.
    """

    def of_all(original: Method, self: Any, guard: Any) -> None:
        _guard_global_hooks(self, guard, ask_for_hooks)
        found = _path_of_hooks(guard.originating_source)
        guards = self.__dict__.setdefault("gradc_hook_guards", {}) if found else {}
        if found is None or (of_module := guards.get(found[0].name) or make_guard()) is None:
            return original(self, guard)
        root, path, attribute = found
        of_module.add(path, attribute)
        if root.name not in guards:
            guards[root.name] = of_module
            manager = self.get_guard_manager_from_source(root)
            manager.add_lambda_guard(of_module.ask, [f"no hooks on the modules of {root.name}"], guard.user_stack)

    return Patch(
        "guard_module_hooks",
        "Dynamo's guards against hooks look up each dictionary by its path, which costs more than the rest of a small call.",
        (around(GuardBuilder, "EMPTY_NN_MODULE_HOOKS_DICT", of_all),),
    )


def _guard_global_hooks(builder: Any, guard: Any, ask_for_hooks: AskForHooks) -> None:
    """Hooks of all modules: Dynamo looks whether there are any while it traces, and guards nothing."""
    if "gradc_global_hooks" not in vars(builder):
        builder.gradc_global_hooks = ask = ask_for_hooks(_GLOBAL_HOOKS)
        builder.guard_manager.root.add_lambda_guard(ask, ["hooks of all modules are there as before"], guard.user_stack)


def _path_of_hooks(source: Any) -> tuple[Any, list[str], str] | None:
    """(source of the outermost module, names of the modules from there on, attribute), of a dictionary of hooks."""
    if not isinstance(source, AttrSource):
        return None
    path: list[str] = []
    attribute, module = source.member, _bare(source.base)
    while isinstance(module, DictGetItemSource) and isinstance(module.index, str):
        modules = _bare(module.base)
        if not isinstance(modules, AttrSource) or modules.member != "_modules":
            return None
        path.insert(0, module.index)
        module = _bare(modules.base)
    return module, path, attribute


def _bare(source: Any) -> Any:
    while isinstance(source, NNModuleSource):
        source = source.base
    return source


def skip_frames_of(modules: tuple[str, ...]) -> Patch:
    """Keep Dynamo from compiling the functions of these modules when compiled code calls them."""
    origins = [spec.origin for name in modules if (spec := find_spec(name)) is not None and spec.origin is not None]
    return Patch(
        "skip_frames_of_gradc",
        "Where compiled code calls gradc, gradc's own functions are not the user's program.",
        (SkipFiles(tuple(map(trace_rules._strip_init_py, origins))),),
    )
