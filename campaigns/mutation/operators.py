"""Mutation operators: one small change each, found in a module's syntax tree.

Code without effect on behaviour is left alone: annotations, docstrings, decorators, messages (strings and raised
values) and code for type checkers.
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_CALCULATED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.BitXor: ast.BitOr,
}
_ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_REMOVED = (ast.Raise, ast.Continue, ast.Break, ast.AugAssign, ast.Delete)


@dataclass(frozen=True)
class Mutant:
    """One change of one statement."""

    module: str
    line: int  # of the statement
    text: str  # of that line
    operator: str
    change: str  # of the changed part, before -> after
    place: int  # among all mutants of the module

    @property
    def name(self) -> tuple[str, str, str]:
        """Key that survives edits elsewhere in the module."""
        return self.module, self.text, self.change


@dataclass
class _Change:
    """Position and result of a change: a field of a node, or an element of a list in it."""

    operator: str
    statement: ast.stmt
    parent: ast.AST
    field: str
    index: int | None
    after: ast.AST

    @property
    def before(self) -> ast.AST:
        held = getattr(self.parent, self.field)
        found: ast.AST = held if self.index is None else held[self.index]
        return found

    def apply(self) -> None:
        if self.index is None:
            setattr(self.parent, self.field, self.after)
        else:
            getattr(self.parent, self.field)[self.index] = self.after


def find_mutants(module: str, source: str) -> list[Mutant]:
    """List all mutants of a module by place."""
    lines = source.splitlines()
    return [
        Mutant(
            module,
            change.statement.lineno,
            lines[change.statement.lineno - 1].strip(),
            change.operator,
            f"{_show(change.before)} -> {_show(change.after)}",
            place,
        )
        for place, change in enumerate(_find_changes(ast.parse(source)))
    ]


def mutate(source: str, place: int) -> ast.Module:
    """Return the module's tree with the change at that place applied."""
    tree = ast.parse(source)
    change = next(change for number, change in enumerate(_find_changes(tree)) if number == place)
    change.apply()
    return ast.fix_missing_locations(tree)


def _show(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())


def _find_changes(tree: ast.Module) -> Iterator[_Change]:
    yield from list(_in_block(tree, "body"))


def _in_block(parent: ast.AST, field: str) -> Iterator[_Change]:
    for index, statement in enumerate(getattr(parent, field)):
        yield from _in_statement(parent, field, index, statement)


def _in_statement(parent: ast.AST, field: str, index: int, statement: ast.stmt) -> Iterator[_Change]:
    if _is_left_alone(statement):
        return
    is_own = isinstance(statement, ast.Assign) and not isinstance(statement.targets[0], ast.Name | ast.Tuple)
    is_call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call | ast.Yield | ast.YieldFrom)
    if isinstance(statement, _REMOVED) or is_own or is_call:
        yield _Change("remove", statement, parent, field, index, ast.copy_location(ast.Pass(), statement))
    if isinstance(statement, ast.Return) and statement.value is not None and not _is_none(statement.value):
        nothing = ast.copy_location(ast.Constant(None), statement.value)
        yield _Change("return", statement, statement, "value", None, nothing)
    if isinstance(statement, ast.If | ast.While):
        yield from _negate(statement, statement, "test", None)
    for name, value in ast.iter_fields(statement):
        if name in {"body", "orelse", "finalbody"}:
            yield from _in_block(statement, name)
        elif name == "handlers":
            for handler in value:
                yield from _in_block(handler, "body")
        elif name == "cases":
            for case in value:
                yield from _in_block(case, "body")
                if case.guard is not None:
                    yield from _in_expression(statement, case, "guard", None)
        elif name == "args":  # of a function: only the defaults
            for part in ("defaults", "kw_defaults"):
                for number, default in enumerate(getattr(value, part)):
                    if default is not None:
                        yield from _in_expression(statement, value, part, number)
        elif name not in {"decorator_list", "annotation", "returns", "bases", "keywords", "targets", "exc", "cause"}:
            yield from _in_field(statement, statement, name, value)


def _is_left_alone(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return True
    if isinstance(statement, ast.If) and _show(statement.test).endswith("TYPE_CHECKING"):
        return True
    if isinstance(statement, ast.AnnAssign) and _show(statement.annotation).endswith("TypeAlias"):
        return True
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        name, value = statement.targets[0].id, _show(statement.value)
        return name == "__all__" or value.startswith(("TypeVar(", "Annotated["))
    return False


def _in_field(statement: ast.stmt, parent: ast.AST, field: str, value: object) -> Iterator[_Change]:
    if isinstance(value, ast.expr):
        yield from _in_expression(statement, parent, field, None)
    elif isinstance(value, list):
        for index, one in enumerate(value):
            if isinstance(one, ast.expr):
                yield from _in_expression(statement, parent, field, index)
            elif isinstance(one, ast.keyword | ast.comprehension | ast.withitem):
                for name, part in ast.iter_fields(one):
                    if not (isinstance(one, ast.comprehension) and name == "target"):
                        yield from _in_field(statement, one, name, part)
                if isinstance(one, ast.comprehension):
                    for number in range(len(one.ifs)):
                        yield from _negate(statement, one, "ifs", number)


def _in_expression(statement: ast.stmt, parent: ast.AST, field: str, index: int | None) -> Iterator[_Change]:
    held = getattr(parent, field)
    node = held if index is None else held[index]

    def changed(operator: str, **fields: object) -> _Change:
        after = copy.copy(node)
        for name, value in fields.items():
            setattr(after, name, value)
        return _Change(operator, statement, parent, field, index, after)

    def instead(operator: str, after: ast.expr) -> _Change:
        return _Change(operator, statement, parent, field, index, ast.copy_location(after, node))

    match node:
        case ast.JoinedStr() | ast.FormattedValue():
            return
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                yield changed("compare", ops=[*ops[:place], _COMPARED[type(op)](), *ops[place + 1 :]])
        case ast.BinOp(op=op) if not _is_text(node.left) and not _is_text(node.right):
            yield changed("arithmetic", op=_CALCULATED[type(op)]())
        case ast.BoolOp(op=op):
            yield changed("and-or", op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not()):
            yield instead("not", copy.copy(node.operand))
        case ast.UnaryOp(op=ast.USub()) if not isinstance(node.operand, ast.Constant):
            yield instead("arithmetic", copy.copy(node.operand))
        case ast.IfExp():
            yield changed("branches", body=node.orelse, orelse=node.body)
        case ast.Constant(value=bool() as value):
            yield instead("constant", ast.Constant(not value))
        case ast.Constant(value=int() | float() as value):
            yield instead("constant", ast.Constant(value + 1))
            yield instead("constant", ast.Constant(value - 1))
        case ast.Constant(value=bytes() as value) if value:
            yield instead("constant", ast.Constant(value[:-1] + bytes([value[-1] ^ 1])))
        case ast.Lambda():
            yield from _in_expression(statement, node, "body", None)
            return
    for name, value in ast.iter_fields(node):
        if name not in {"annotation", "ctx"}:
            yield from _in_field(statement, node, name, value)


def _negate(statement: ast.stmt, parent: ast.AST, field: str, index: int | None) -> Iterator[_Change]:
    """Yield the negated condition, unless another operator yields the same."""
    held = getattr(parent, field)
    test = held if index is None else held[index]
    is_equality = isinstance(test, ast.Compare) and len(test.ops) == 1 and not isinstance(test.ops[0], _ORDERED)
    if is_equality or isinstance(test, ast.UnaryOp):
        return
    opposite = ast.copy_location(ast.UnaryOp(ast.Not(), copy.copy(test)), test)
    yield _Change("negate", statement, parent, field, index, opposite)


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _is_text(value: ast.expr) -> bool:
    return isinstance(value, ast.JoinedStr) or (isinstance(value, ast.Constant) and isinstance(value.value, str))
