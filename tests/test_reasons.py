"""docs/reasons.md has a row for each name under which gradc counts what it left to eager, and no row without such a name.

The names are read off the code: what ``UnsupportedError``, ``end_graph`` and their like are called with, followed through
variables, parameters and functions to where the words stand. What is not followed is listed below.
"""

import ast
import builtins
import functools
import itertools
import pathlib
import re
from collections.abc import Iterable, Iterator

import gradc.errors

ROOT = pathlib.Path(__file__).parent.parent
CODE, PAGE = ROOT / "gradc", ROOT / "docs" / "reasons.md"

# What is called with a name: which argument that is, and what the counter puts before it.
CALLS: dict[str, tuple[int | str, str]] = {
    "end_graph": (0, "gradc: "),
    "Kind": (1, "gradc: "),
    "LeftForNow": (0, "gradc: "),
    "ConvertFrameReturn": ("skip_reason", ""),
    "_refusal": (0, ""),
    "Uncompiled": (1, ""),
    "UnsupportedError": (0, ""),
    "Fallback": (0, ""),
    "fallback": (0, ""),
    "_WrongGraphError": (0, ""),
    "UnverifiableError": (0, "left out: "),
    "leave_out": (0, "left out: "),
    "_leave_out": (0, "left out: "),
    "_by_torch": (0, "by torch: "),
    "_refuse": (2, ""),
    "Refused": (0, ""),
}
ATTRIBUTES = {"taint": "", "_failure": "", "reason": "left out: "}  # that are set to a name
OF_PASSES = "compiled autograd: "
PREFIXES = {"compiled_autograd/entry.py": OF_PASSES, "compiled_autograd/sessions.py": OF_PASSES}
IN_CPP = {  # in files below these: the pattern of a name
    "walk": r'throw Unsupported\([^"]*"([^"]+)"(?: : "([^"]+)")?|leaves_a_graph = "([^"]+)"',
    "capture": r'throw Unsupported\("([^"]+)"',
    "executor": r'raise_unsupported\("([^"]+)"',
    "executor/core": r'return "([^"]+)";|return is_read \? "([^"]+)"|throw std::runtime_error\("([^"]+)"',
    "optim": r'return "([^"]+)"',
}
BEFORE_CPP = {"walk": OF_PASSES, "optim": "by torch: ", "executor/core": "by calls: "}

NOT_FOLLOWED = {
    # named where it was made
    "captured.failure",
    "error.kind",
    "found.kind",
    "reason.kind",
    "self._failure",
    "self.name",
    "self.reason",
    "self.recorder.taint",
    "self.taint",
    "traced.failure",
    "what.kind",
    # in C++
    "_update_of(formula, params).why_not(operands)",
    "native.extension.why_not_scalars(scalars)",
    # Dynamo's words, and those of errors in eager's copy
    "kind.strip()",
    "reason.splitlines()[0]",
    "error",
    "str(error).split('\\n')[0][:80]",
}
NO_ERRORS = {"UnsupportedError", "is_passing"}  # in errors.py: not for users; a function


class Reader:
    """What an expression may be, as patterns: what is known to the letter, and anything where a part is not."""

    def __init__(self, sources: dict[str, str]) -> None:
        self.files = {file: ast.parse(source) for file, source in sources.items()}
        self.outer = {
            child: node for tree in self.files.values() for node in ast.walk(tree) for child in ast.iter_child_nodes(node)
        }
        self.file_of = {node: file for file, tree in self.files.items() for node in ast.walk(tree)}
        self.functions: dict[str, list[ast.FunctionDef]] = {}
        self.calls: dict[str, list[ast.Call]] = {}
        for node in self.file_of:
            if isinstance(node, ast.FunctionDef):
                self.functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.Call) and (name := last_name(node.func)):
                self.calls.setdefault(name, []).append(node)
        self.not_followed: dict[str, str] = {}
        self._asked: list[ast.AST] = []

    def words(self, node: ast.AST) -> set[str]:
        """The patterns of what ``node`` may be; none for "" and for what is not followed."""
        if node in self._asked:
            return set()
        self._asked.append(node)
        try:
            return set(self._words(node))
        finally:
            self._asked.pop()

    def _words(self, node: ast.AST) -> Iterable[str]:
        match node:
            case ast.Constant(value=str(text)):
                return [re.escape(text)] if text else []
            case ast.IfExp(body=a, orelse=b):
                return self._of([a, b])
            case ast.BoolOp(values=several):
                return self._of(several)
            case ast.JoinedStr(values=parts):
                return map("".join, itertools.product(*(self._part(part) for part in parts)))
            case ast.GeneratorExp(elt=inner) | ast.NamedExpr(value=inner):
                return self.words(inner)
            case ast.Call(func=ast.Name(id="next" | "str"), args=several):
                return self._of(several)
            case ast.Call(func=function) if name := last_name(function):
                return self._returned(node, name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name) if name in self.functions:
                return self._returned(node, name)
            case ast.Name(id=name):
                return self._named(node, name)
        return self._unknown(node)

    def _of(self, several: Iterable[ast.AST]) -> set[str]:
        return {word for each in several for word in self.words(each)}

    def _part(self, part: ast.AST) -> set[str]:
        if isinstance(part, ast.FormattedValue):
            known = self.not_followed.copy()
            found = self.words(part.value)
            self.not_followed = known
            return found or {".+"}
        return self.words(part)

    def _unknown(self, node: ast.AST) -> set[str]:
        self.not_followed[ast.unparse(node)] = self.file_of[node]
        return set()

    def _returned(self, node: ast.AST, name: str) -> set[str]:
        functions = self.functions.get(name, [])
        near = [function for function in functions if self.file_of[function] == self.file_of[node]]
        near = near or (functions if isinstance(node, ast.Call) and name not in dir(builtins) else [])
        if not near:
            return self._unknown(node)
        return self._of(
            inner.value
            for function in near
            for inner in ast.walk(function)
            if isinstance(inner, ast.Return) and inner.value is not None and self._function(inner) is function
        )

    def _function(self, node: ast.AST) -> ast.FunctionDef | None:
        while (outer := self.outer.get(node)) is not None:
            if isinstance(outer, ast.FunctionDef):
                return outer
            node = outer
        return None

    def _named(self, node: ast.Name, name: str) -> set[str]:
        """What a variable is set to, in the function or around it; or what a parameter is given."""
        scope: ast.AST | None = self._function(node)
        while scope is not None:
            if values := [value for inner in ast.walk(scope) for value in values_of(inner, name)]:
                return self._of(values)
            if isinstance(scope, ast.FunctionDef) and name in (names := [argument.arg for argument in scope.args.args]):
                return self._given(scope, names.index(name) - ("self" in names), name)
            scope = self._function(scope)
        values = self._constants(self.file_of[node], name) or [v for file in self.files for v in self._constants(file, name)]
        return self._of(values) if values else self._unknown(node)

    def _constants(self, file: str, name: str) -> list[ast.AST]:
        return [value for statement in self.files[file].body for value in values_of(statement, name)]

    def _given(self, function: ast.FunctionDef, position: int, name: str) -> set[str]:
        calls = [call for call in self.calls.get(function.name, []) if self.file_of[call] == self.file_of[function]]
        return self._of(found for call in calls if (found := argument(call, position, name)) is not None)


def last_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def values_of(node: ast.AST, name: str, kind: type[ast.expr] = ast.Name) -> Iterator[ast.AST]:
    """What a statement, or a walrus, sets the variable, or the attribute, ``name`` to."""
    pairs: Iterable[tuple[ast.AST, ast.AST]] = ()
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            pairs = zip(targets, values)
        case ast.Assign(targets=[target, *_], value=value) | ast.NamedExpr(target=target, value=value):
            pairs = [(target, value)]
    yield from (value for target, value in pairs if isinstance(target, kind) and last_name(target) == name)


def argument(call: ast.Call, position: int | str, name: str = "") -> ast.AST | None:
    if isinstance(position, int) and position < len(call.args):
        return call.args[position]
    return next((keyword.value for keyword in call.keywords if keyword.arg in (position, name)), None)


@functools.cache
def read() -> tuple[set[str], set[str]]:
    """The patterns of all names, as they are counted, without what follows a colon at the end; and what was not followed."""
    reader = Reader({str(path.relative_to(CODE)): path.read_text() for path in CODE.rglob("*.py")})
    return names_in_cpp() | names_in(reader), set(reader.not_followed)


def names_in(reader: Reader) -> set[str]:
    return {
        (re.escape(prefix or PREFIXES.get(file, "")) + word).removesuffix(r":\ .+")
        for node, file in reader.file_of.items()
        for prefix, given in named_by(node)
        for word in reader.words(given)
    }


def named_by(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What is a name in this call or assignment, and what the counter puts before it."""
    match node:
        case ast.Call(func=ast.Name(id="partial") | ast.Attribute(attr="partial"), args=[function, given, *_]):
            if last_name(function) in CALLS:
                yield CALLS[last_name(function)][1], given
        case ast.Call(func=function) if last_name(function) in CALLS:
            place, prefix = CALLS[last_name(function)]
            is_method_of_kind = last_name(function) == "end_graph" and isinstance(function, ast.Attribute)
            if (given := argument(node, place)) is not None and not is_method_of_kind:
                yield prefix, given
        case ast.Assign():
            for name, prefix in ATTRIBUTES.items():
                yield from ((prefix, value) for value in values_of(node, name, ast.Attribute))


def names_in_cpp() -> set[str]:
    return {
        re.escape(BEFORE_CPP.get(room, "") + name)
        for room, pattern in IN_CPP.items()
        for path in (CODE / room / "csrc").glob("*.cpp")
        for found in re.finditer(pattern, path.read_text())
        for name in found.groups()
        if name
    }


def rows() -> list[str]:
    """The names that the page has rows for: what is set as code in the first column of its tables."""
    cells = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    return [name for cell in cells for name in re.findall("`([^`]+)`", cell)]


def errors() -> set[str]:
    """The names of gradc's own errors."""
    return {
        name for name, value in vars(gradc.errors).items() if getattr(value, "__module__", "") == "gradc.errors"
    } - NO_ERRORS


def test_each_name_has_a_row():
    assert not [name for name in read()[0] if not any(re.fullmatch(name, row) for row in rows())]


def test_each_row_has_a_name_in_the_code():
    assert not [row for row in set(rows()) - errors() if not any(re.fullmatch(name, row) for name in read()[0])]


def test_each_error_has_a_row():
    assert errors() <= set(rows())


def test_no_name_has_two_rows():
    assert len(rows()) == len(set(rows()))


def test_what_is_not_followed_is_known():
    """What is new here may hide names: it is to be named elsewhere, or followed."""
    assert read()[1] == NOT_FOLLOWED


def test_names_are_followed_to_where_they_are_words():
    source = """
LIMIT = "a constant"

def mode():
    return "a mode" if now() else ""

def refuse(kind, detail):
    raise UnsupportedError(kind, detail)

def f(x, error):
    refuse("an argument", x)
    if reason := mode() or LIMIT:
        raise UnsupportedError(f"{reason} during {x}: {error}")
    raise UnsupportedError(error.kind)
"""
    reader = Reader({"file.py": source})
    names = {re.sub(r"\\(.)", r"\1", name) for name in names_in(reader)}
    assert names == {"an argument", "a mode during .+", "a constant during .+"}
    assert set(reader.not_followed) == {"error.kind"}
