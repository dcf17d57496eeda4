"""What Python's own types answer, to the word: formatted text, ranges, ``zip(strict=True)``, generators, functions."""

from __future__ import annotations

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
from gradc.torch_private.ours import is_frame_ours
from gradc.torch_private.patches import Method, Patch
from gradc.torch_private.weaver import after, around, before

_DEFAULTS = ("__defaults__", "__kwdefaults__", "__code__")


def answer_as_builtin_types_do() -> Patch:
    """End the graph where an object is formatted; leave code alone whose iterators differ in length, that goes on with a
    generator behind a graph, that writes into the defaults of a function, or asks for ``locals()``.

    Dynamo formats behind the graph: by then the object may have changed, or not have its attributes yet. The error of a strict
    ``zip`` it words otherwise. Of a generator it makes an iterator over all that would come, which takes no ``send``. What a
    function's defaults are it asks the function, while it keeps what was written to itself. Behind a graph are those variables
    alone that are read there.
    """

    # Since 2.14 a range answers with a bool, and str() of an object asks as repr() does.
    answers = (after(RangeVariable, "sq_contains", _contains), before(BuiltinVariable, "call_str", _str))
    return Patch(
        "answer_as_builtin_types_do",
        "Dynamo formats objects too late, or for good, answers 1 for True, words errors otherwise, and uses up generators.",
        (
            before(StringFormatVariable, "__init__", _format),
            before(InstructionTranslatorBase, "_format_value", _format_value),
            *(answers if IS_BEFORE_2_14 else ()),
            before(UserDefinedObjectVariable, REPR, _repr),
            before(iterators, "raise_value_error", _shorter),
            before(SideEffects, "mutation", _mutation),
            around(ConvertFrameAssert, "__call__", _convert, scope=is_frame_ours),
            before(LocalGeneratorObjectVariable, "reconstruct", _generator),
            *read_names_from_functions(),
        ),
    )


def _format(self: Any, format_string: str, sym_args: list[Any], sym_kwargs: dict[str, Any], **_: Any) -> None:
    if not all(map(_is_formatted_at_any_time, (*sym_args, *sym_kwargs.values()))):
        end_graph("format of an object", "gradc formats it there and then: behind the graph it may be another.")


def _format_value(self: Any, *args: Any) -> None:
    if isinstance(self.stack[-1].realize(), SymNodeVariable):
        end_graph("format of a number that changes", "Dynamo would load the number in place of the text.")


def _repr(self: Any, tx: Any) -> None:
    if self.python_type().__repr__ is object.__repr__:
        end_graph("text of an object", "It has the object's address, which another has not.")


def _str(self: Any, tx: Any, arg: Any) -> None:
    if isinstance(arg, UserDefinedObjectVariable) and arg.python_type().__str__ is object.__str__:
        end_graph("text of an object", "Dynamo would ask for it here and now, and take it for a constant.")


def _contains(found: Any, self: Any, tx: Any, item: Any) -> Any:
    return ConstantVariable.create(bool(found.as_python_constant())) if found.is_python_constant() else found


def _shorter(tx: Any, *args: Any, **kwargs: Any) -> None:
    end_graph("iterator that is shorter", "Python says which one it is.", skip_frame=True)


def _mutation(self: Any, var: Any) -> None:
    if getattr(var.source, "member", "") in _DEFAULTS:
        end_graph("defaults of a function", "They hold from the next call on.", skip_frame=True)


def _generator(self: Any, codegen: Any) -> None:
    end_graph("generator that goes on", "Behind a graph Dynamo has a list of what it would yield.")


def _convert(original: Method, self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
    if "locals" in frame.f_code.co_names:
        return ConvertFrameReturn(skip_reason="gradc: locals()")
    return original(self, frame, *args, **kwargs)


def _is_formatted_at_any_time(value: Any) -> bool:
    return value.is_python_constant() or isinstance(value.realize(), StringFormatVariable)
