"""Inductor, torch's own code generator, asked for the code of one graph without autograd."""

from __future__ import annotations

import os
import pathlib
import stat
from typing import Any

import torch
from torch._guards import TracingContext, tracing
from torch.compiler import config as compiler
from torch.fx.experimental.proxy_tensor import make_fx

from gradc.torch_private.fakes import FakeTensorMode, fake_mode_for, new_shape_env


def functionalized_graph(function: Any, inputs: list[Any]) -> tuple[torch.fx.GraphModule, list[Any]]:
    """``function`` on inputs like ``inputs`` as a graph that Inductor takes, and the fake inputs.

    The graph has no mutation but copies to inputs at its end, and is made of the ops that Inductor does not decompose.
    """
    from torch._inductor import config  # slow to import, and not always wanted
    from torch._inductor.decomposition import select_decomp_table

    with fake_mode_for(inputs) as fakes, torch.no_grad(), config.patch(fallback_random=True):
        made = make_fx(torch.func.functionalize(function, remove="mutations"), decomposition_table=select_decomp_table())
        graph = made(*fakes)
    with fake_mode_for(inputs) as fakes:
        return graph, fakes


def compile_fx_inner(graph: torch.fx.GraphModule, fakes: list[Any]) -> Any:
    """Inductor's graph compiler, without autograd: returns a function of a list of inputs, which it empties.

    Inductor keeps what it makes on disk, for the next process. It does so only within a tracing context whose fake mode knows
    of symbolic sizes, since it also keeps what is assumed of these; ``fakes`` have none. Its code steps through memory by the
    vector registers of the machine that it was written for, or of ``ATEN_CPU_CAPABILITY``. Found again where they are wider, as
    in a folder that several machines share, it would be compiled for these, and write behind the ends of tensors.

    Raises:
        PermissionError: if Inductor's folder is one that another user could have filled.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner as inductor
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    _prepare(graph)
    tag = f"{compiler.cache_key_tag}, written for {pick_vec_isa()}"
    context = TracingContext(FakeTensorMode(allow_non_fake_inputs=True, shape_env=new_shape_env()))
    with tracing(context), config.patch(fallback_random=True), compiler.patch(cache_key_tag=tag):  # type: ignore[attr-defined]
        return inductor(graph, fakes)


def compile_ahead(graph: torch.fx.GraphModule, fakes: list[Any]) -> str:
    """The same as a shared library for torch's ``AOTIModelContainerRunner``, without Python in it: its path.

    Raises:
        PermissionError: as above.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner as inductor
    from torch._inductor.virtualized import V

    _prepare(graph)
    with config.patch(fallback_random=True, cpp_wrapper=True, compile_threads=1), V.set_aot_compilation(True):
        made: Any = inductor(graph, fakes, aot_mode=True, cpp_wrapper=True)
    return str(made.filename)


def _prepare(graph: torch.fx.GraphModule) -> None:
    """What either asks for: all outputs keep their strides."""
    _check_folder()
    (output,) = graph.graph.find_nodes(op="output")
    output.meta["user_visible_output_idxs"] = list(range(len(output.args[0])))


def _check_folder() -> None:
    """Inductor runs the code that it finds in its folder, which by default lies where others may make one of that name."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    folder = pathlib.Path(default_cache_dir())
    if folder != pathlib.Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", folder)) or not folder.exists():
        return  # one that the user has named, or one that Inductor is about to make
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & stat.S_IWOTH:
        raise PermissionError(
            f"another user could have put code into Inductor's folder {folder}: it belongs to user {status.st_uid},"
            f" this process to {os.geteuid()}, and its mode is {stat.S_IMODE(status.st_mode):o}."
            " Name one of yours in TORCHINDUCTOR_CACHE_DIR"
        )
