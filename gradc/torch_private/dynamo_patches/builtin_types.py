"""What Python's own types answer, to the word: formatted text, ranges, ``zip(strict=True)``, generators, functions."""

from __future__ import annotations

import functools
from typing import Any

from torch._dynamo.convert_frame import ConvertFrameAssert, ConvertFrameReturn
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.variables import iter as iterators
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.functions import LocalGeneratorObjectVariable
from torch._dynamo.variables.lists import RangeVariable
from torch._dynamo.variables.misc import StringFormatVariable
from torch._dynamo.variables.tensor import SymNodeVariable
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

from gradc.torch_private.dynamo_names import IS_BEFORE_2_14, REPR
from gradc.torch_private.dynamo_patches.ends import end_graph
from gradc.torch_private.dynamo_patches.function_names import read_names_from_functions
from gradc.torch_private.dynamo_patches.settings import is_compiling_for_gradc
from gradc.torch_private.patches import IsOurs, Method, Patch, Replace

_DEFAULTS = ("__defaults__", "__kwdefaults__", "__code__")


def answer_as_builtin_types_do(is_ours: IsOurs) -> Patch:
    """End the graph where an object is formatted; leave code alone whose iterators differ in length, that goes on with a
    generator behind a graph, that writes into the defaults of a function, or asks for ``locals()``.

    Dynamo formats behind the graph: by then the object may have changed, or not have its attributes yet. The error of a strict
    ``zip`` it words otherwise. Of a generator it makes an iterator over all that would come, which takes no ``send``. What a
    function's defaults are it asks the function, while it keeps what was written to itself. Behind a graph are those variables
    alone that are read there.
    """

    def make_format(original: Method) -> Method:
        @functools.wraps(original)
        def init(self: Any, text: str, args: list[Any], kwargs: dict[str, Any], **rest: Any) -> None:
            if is_compiling_for_gradc() and not all(map(_is_formatted_at_any_time, (*args, *kwargs.values()))):
                end_graph("format of an object", "gradc formats it there and then: behind the graph it may be another.")
            original(self, text, args, kwargs, **rest)

        return init

    def make_format_value(original: Method) -> Method:
        @functools.wraps(original)
        def format_value(self: Any, *args: Any) -> None:
            if isinstance(self.stack[-1].realize(), SymNodeVariable) and is_ours(self.output.compiler_fn):
                end_graph("format of a number that changes", "Dynamo would load the number in place of the text.")
            original(self, *args)

        return format_value

    def make_repr(original: Method) -> Method:
        @functools.wraps(original)
        def represent(self: Any, tx: Any) -> Any:
            if self.python_type().__repr__ is object.__repr__ and is_ours(tx.output.compiler_fn):
                end_graph("text of an object", "It has the object's address, which another has not.")
            return original(self, tx)

        return represent

    def make_str(original: Method) -> Method:
        @functools.wraps(original)
        def call_str(self: Any, tx: Any, arg: Any) -> Any:
            is_object = isinstance(arg, UserDefinedObjectVariable) and arg.python_type().__str__ is object.__str__
            if is_object and is_ours(tx.output.compiler_fn):
                end_graph("text of an object", "Dynamo would ask for it here and now, and take it for a constant.")
            return original(self, tx, arg)

        return call_str

    def make_contains(original: Method) -> Method:
        @functools.wraps(original)
        def contains(self: Any, tx: Any, item: Any) -> Any:
            found = original(self, tx, item)
            is_number = is_ours(tx.output.compiler_fn) and found.is_python_constant()
            return ConstantVariable.create(bool(found.as_python_constant())) if is_number else found

        return contains

    def make_shorter(original: Method) -> Method:
        @functools.wraps(original)
        def raise_error(tx: Any, *args: Any, **kwargs: Any) -> Any:
            if is_ours(tx.output.compiler_fn):
                end_graph("iterator that is shorter", "Python says which one it is.", skip_frame=True)
            return original(tx, *args, **kwargs)

        return raise_error

    def make_mutation(original: Method) -> Method:
        @functools.wraps(original)
        def mutation(self: Any, item: Any) -> None:
            if getattr(item.source, "member", "") in _DEFAULTS and is_compiling_for_gradc():
                end_graph("defaults of a function", "They hold from the next call on.", skip_frame=True)
            original(self, item)

        return mutation

    def make_generator(original: Method) -> Method:
        @functools.wraps(original)
        def reconstruct(self: Any, codegen: Any) -> None:
            if is_ours(codegen.tx.output.compiler_fn):
                end_graph("generator that goes on", "Behind a graph Dynamo has a list of what it would yield.")
            original(self, codegen)

        return reconstruct

    def make_convert(original: Method) -> Method:
        @functools.wraps(original)
        def convert(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
            if "locals" in frame.f_code.co_names and is_ours(self._torchdynamo_orig_backend):
                return ConvertFrameReturn(skip_reason="gradc: locals()")
            return original(self, frame, *args, **kwargs)

        return convert

    # Since 2.14 a range answers with a bool, and str() of an object asks as repr() does.
    answers = (Replace(RangeVariable, "sq_contains", make_contains), Replace(BuiltinVariable, "call_str", make_str))
    return Patch(
        "answer_as_builtin_types_do",
        "Dynamo formats objects too late, or for good, answers 1 for True, words errors otherwise, and uses up generators.",
        (
            Replace(StringFormatVariable, "__init__", make_format),
            Replace(InstructionTranslatorBase, "_format_value", make_format_value),
            *(answers if IS_BEFORE_2_14 else ()),
            Replace(UserDefinedObjectVariable, REPR, make_repr),
            Replace(iterators, "raise_value_error", make_shorter),
            Replace(SideEffects, "mutation", make_mutation),
            Replace(ConvertFrameAssert, "__call__", make_convert),
            Replace(LocalGeneratorObjectVariable, "reconstruct", make_generator),
            *read_names_from_functions(),
        ),
    )


def _is_formatted_at_any_time(value: Any) -> bool:
    return value.is_python_constant() or isinstance(value.realize(), StringFormatVariable)
