"""
What can be made wrong in a module: one small change of its text at a time.

Works on syntax alone. Knows no test, and nothing of what the code is for, but for the names of a few functions: the
clauses of SQL, each of which is left out once, and those that are easily taken for each other.
"""

from __future__ import annotations

import ast
import copy
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

COMPARISONS: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATIONS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
TWINS: Final = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "and_": "or_",
    "or_": "and_",
    "greatest": "least",
    "least": "greatest",
    "now": "clock_timestamp",
    "clock_timestamp": "now",
    "join": "outerjoin",
    "outerjoin": "join",
    "is_": "is_not",
    "is_not": "is_",
}
CLAUSES: Final = frozenset(
    {
        *("where", "filter", "order_by", "desc", "limit", "offset", "with_for_update", "prefix_with", "correlate"),
        *("on_conflict_do_nothing", "execution_options"),
    }
)
"""Methods that return one more of what they were called on."""
ALIKE: Final = frozenset(
    {
        *("where", "filter", "select", "order_by", "returning", "values", "and_", "or_", "tuple_", "case", "cast"),
        *("coalesce", "greatest", "least", "min", "max"),
    }
)
"""Functions that do without any one of their arguments; others would only complain."""
NAMING: Final = frozenset({"bind", "bindparam", "label", "cte", "lateral", "subquery", "alias", "column", "rows_of"})
"""Functions whose texts are names, which must be the same in two places."""
NEAR: Final = 8
"""How many words and signs around a change its name has."""
_LEFT_ALONE: Final = frozenset({"annotation", "returns", "decorator_list", "bases", "exc", "cause", "type_comment"})


class Mutant(NamedTuple):
    """
    One change, and where it is.
    """

    line: int
    place: str
    """The names of the class and the function around it; empty at the top of the module."""
    change: str
    source: str
    """The whole module, changed."""

    @property
    def name(self) -> str:
        """
        What stays the same when lines are added above.
        """
        return f"{self.place}: {self.change}"


def mutants(source: str) -> Iterator[Mutant]:
    """
    Yield the mutants of a module's *source*, from its first line to its last.
    """
    raw = source.encode()
    starts = [0]
    for line in raw.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    seen = {source}
    for place, node in _nodes(ast.parse(source), ""):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        for after in _changes(node):
            changed = (raw[:begin] + after.encode() + raw[end:]).decode()
            if changed not in seen and _parses(changed):
                seen.add(changed)
                before = ast.unparse(node.node if isinstance(node, _Condition) else node)
                yield Mutant(node.lineno, place, _difference(before, after), changed)


def _difference(before: str, after: str) -> str:
    """
    Return what is another in *after*, with the words around it.
    """
    old, new = (re.findall(r"\w+|\s+|.", text) for text in (before, after.removeprefix("(").removesuffix(")")))
    begin = _common(old, new)
    end = _common(old[begin:][::-1], new[begin:][::-1])
    near, far = max(0, begin - NEAR), max(0, end - NEAR)
    return " -> ".join("".join(words[near : len(words) - far]).strip() for words in (old, new))


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """
    Return with how many items both begin.
    """
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


class _Condition(ast.expr):
    """
    Stands for an expression that decides.
    """

    def __init__(self, node: ast.expr) -> None:
        super().__init__()
        self.node = node
        ast.copy_location(self, node)


def _nodes(node: ast.AST, place: str) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
    """
    Yield what may be changed: no annotation, no import, no docstring, no text of an error.
    """
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield place, _Condition(test)
        case ast.comprehension(ifs=tests):
            yield from ((place, _Condition(test)) for test in tests)
    for name, value in ast.iter_fields(node):
        if name == "args" and isinstance(node, ast.Call) and _name(node) in NAMING:
            continue
        for child in value if isinstance(value, list) else [value]:
            if name in _LEFT_ALONE or not isinstance(child, ast.AST) or _is_left_alone(child):
                continue
            inner = place
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{place}.{child.name}" if place else child.name
            elif isinstance(child, ast.expr | ast.stmt):
                yield place, child
            yield from _nodes(child, inner)


def _name(call: ast.Call) -> str:
    """
    Return the name of the function or method that *call* calls.
    """
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _is_left_alone(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()) | ast.AnnAssign(value=None) | ast.JoinedStr():
            return True
        case ast.Import() | ast.ImportFrom() | ast.Assign(targets=[ast.Name(id="__all__")]):
            return True
    return False


def _with(node: ast.AST, field: str, value: Any) -> str:
    """
    Return *node* with another value in one of its fields.
    """
    twin = copy.copy(node)
    setattr(twin, field, value)
    return f"({ast.unparse(twin)})"


def _without(node: ast.AST, index: int, *fields: str) -> str:
    """
    Return *node* without the item at *index* of the lists that are its *fields*.
    """
    twin = copy.copy(node)
    for field in fields:
        items = list(getattr(node, field))
        del items[index]
        setattr(twin, field, items)
    return ast.unparse(twin) if isinstance(node, ast.Dict) else f"({ast.unparse(twin)})"


def _changes(node: ast.expr | ast.stmt) -> Iterator[str]:
    """
    Yield what may stand in the place of *node*.
    """
    match node:
        case _Condition():
            yield f"(not ({ast.unparse(node.node)}))"
        case ast.Constant(value=value):
            yield from _other_constants(value)
        case ast.Call():
            yield from _other_calls(node)
        case ast.Dict() if len(node.values) > 1:
            yield from (_without(node, index, "keys", "values") for index in range(len(node.values)))
        case ast.IfExp(body=body, orelse=orelse):
            yield from (f"({ast.unparse(body)})", f"({ast.unparse(orelse)})")
        case ast.expr():
            yield from _other_operations(node)
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Delete() | ast.Break():
            yield "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "pass"
        case ast.Continue():
            yield "break"


def _other_constants(value: object) -> Iterator[str]:
    if isinstance(value, bool):
        yield repr(not value)
    elif isinstance(value, int | float):
        yield repr(value + 1)
    elif isinstance(value, str):
        yield repr(f"XX{value}XX")


def _other_operations(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Compare(ops=[operator]):
            yield from (_with(node, "ops", [other()]) for other in COMPARISONS[type(operator)])
        case ast.BoolOp(op=operator, values=values):
            yield _with(node, "op", ast.Or() if isinstance(operator, ast.And) else ast.And())
            yield from (_without(node, index, "values") for index in range(len(values)))
        case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.BinOp(op=operator) if type(operator) in OPERATIONS:
            yield _with(node, "op", OPERATIONS[type(operator)]())


def _other_calls(node: ast.Call) -> Iterator[str]:
    """
    Yield *node* without one of its arguments, with another function, and what its method was called on.
    """
    if _name(node) in ALIKE and len(node.args) > 1:
        yield from (_without(node, index, "args") for index in range(len(node.args)))
    yield from (_without(node, index, "keywords") for index, one in enumerate(node.keywords) if one.arg != "type_")
    match node.func:
        case ast.Attribute(value=value, attr=name):
            if name in TWINS:
                yield _with(node, "func", ast.Attribute(value, TWINS[name]))
            if name in CLAUSES:
                yield ast.unparse(value)
        case ast.Name(id=("sorted" | "reversed")):
            yield f"[*{ast.unparse(node.args[0])}]"
        case ast.Name(id=name) if name in TWINS:
            yield _with(node, "func", ast.Name(TWINS[name]))
