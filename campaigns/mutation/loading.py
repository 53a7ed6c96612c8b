"""Import hook that loads modules from modified syntax trees instead of their files."""

import ast
import builtins
import importlib.machinery
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import CodeType, ModuleType

SEEN = "__mutation_seen__"  # the builtin set to which marked modules add


class _ChangedLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(self._tree, self.path, "exec")
        return code


class ChangedFinder(MetaPathFinder):
    """Finds modules that are to be loaded from modified trees."""

    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        self._trees = trees

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._trees:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if found is not None and found.origin is not None:
            found.loader = _ChangedLoader(fullname, found.origin, self._trees[fullname])
        return found


def load_changed(trees: Mapping[str, ast.Module]) -> None:
    """Load these modules from their trees from now on; none may be loaded yet."""
    loaded = sorted(name for name in trees if name in sys.modules)
    if loaded:
        raise RuntimeError(f"{loaded[0]} is loaded already, a fresh process expected")
    sys.meta_path.insert(0, ChangedFinder(trees))


def mark_statements(module: str, source: str) -> ast.Module:
    """Return the module's tree in which every statement first adds its module and line to the set `SEEN`."""
    tree = ast.parse(source)
    _Marker(module).visit(tree)
    return ast.fix_missing_locations(tree)


class _Marker(ast.NodeTransformer):
    def __init__(self, module: str) -> None:
        self._module = module

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                setattr(node, field, [part for number, one in enumerate(block) for part in self._marked(number, one)])
        return node

    def _marked(self, number: int, statement: ast.stmt) -> list[ast.stmt]:
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        is_future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if is_future or (number == 0 and is_text):
            return [statement]
        mark = ast.parse(f"{SEEN}.add({f'{self._module}:{statement.lineno}'!r})").body[0]
        for part in ast.walk(mark):
            ast.copy_location(part, statement)
        return [mark, statement]


def watch() -> set[str]:
    """Install and return the set to which marked modules add."""
    seen: set[str] = set()
    setattr(builtins, SEEN, seen)
    return seen


def module_sources(root: Path, patterns: Sequence[str]) -> dict[str, str]:
    """Return the sources of the package's modules that match these patterns below `src`, by module."""
    source = root / "src"
    paths = sorted({path for pattern in patterns for path in source.glob(pattern)})
    modules = [path for path in paths if path.name != "__init__.py"]
    return {".".join(path.relative_to(source).with_suffix("").parts): path.read_text("utf-8") for path in modules}
