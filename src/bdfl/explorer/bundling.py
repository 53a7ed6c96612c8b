"""Bundle the pages' JavaScript modules into one classic script, for pages opened from a disk.

Browsers load no modules from `file://`. Our modules use a few plain forms of import and export only. All other forms
are rejected, so that an export behaves like the server's pages.
"""

import re
from collections.abc import Callable

from bdfl.errors import BdflError

_NAME = r"[A-Za-z_$][A-Za-z0-9_$]*"
_IMPORT = re.compile(rf'import \{{ ({_NAME}(?:, {_NAME})*) \}} from "\./([a-z0-9_]+\.js)";')
_EXPORT = re.compile(rf"export ((?:async function|function|class|const)\b\s+({_NAME})\b.*)")
_DECLARATION = re.compile(rf"(?:async function\*?|function\*?|class|const|let|var)\s+({_NAME})\b")
_DECLARING = re.compile(r"(?:async function|function|class|const|let|var)\b")
_FORBIDDEN = (
    (re.compile(r"^(?!\s*(?:/\*|\*|//)).*\bimport\s*[(.]"), "import( or import."),  # except types in comments
    (re.compile(r"</script|<!--", re.IGNORECASE), "</script or <!--"),
    (re.compile(r"^await\b"), "await outside a function"),
    (re.compile(r"\r"), "a carriage return"),
)

ReadModule = Callable[[str], str]


class CannotBundle(BdflError):
    """A module with a construct that cannot be part of a classic script."""


def bundle(first: str, read: ReadModule) -> str:
    """Return a classic script equivalent to the module `first`; `read` returns the text of a module by its name."""
    bundler = _Bundler(read)
    bundler.add(first, ())
    body = "\n".join(bundler.parts)
    return f'(() => {{\n"use strict";\n{body}\n}})();\n'


class _Bundler:
    """Modules in dependency order, each once."""

    def __init__(self, read: ReadModule) -> None:
        self._read = read
        self._exported: dict[str, frozenset[str]] = {}  # by module
        self._declared: dict[str, str] = {}  # name: module
        self.parts: list[str] = []

    def add(self, module: str, users: tuple[str, ...]) -> None:
        """Add a module after all its dependencies."""
        if module in users:
            raise CannotBundle(f"{module}: uses itself through {' and '.join(users[users.index(module) + 1 :])}")
        if module in self._exported:
            return
        lines, exported = [], set()
        for number, line in enumerate(self._read(module).split("\n"), start=1):
            where = f"{module}:{number}"
            _refuse_forbidden(where, line)
            if line.startswith("import"):
                self._import(where, line, (*users, module))
                continue
            if line.startswith("export"):
                found = _EXPORT.fullmatch(line)
                if found is None:
                    raise CannotBundle(f"{where}: export function, async function, class or const NAME expected")
                line, name = found.groups()
                exported.add(name)
            self._declare(where, module, line)
            lines.append(line)
        self._exported[module] = frozenset(exported)
        self.parts.append(f"// {module}\n" + "\n".join(lines).strip("\n"))

    def _import(self, where: str, line: str, users: tuple[str, ...]) -> None:
        found = _IMPORT.fullmatch(line)
        if found is None:
            raise CannotBundle(f'{where}: import {{ NAME, NAME }} from "./MODULE.js"; expected')
        names, module = found.groups()
        self.add(module, users)
        missing = set(names.split(", ")) - self._exported[module]
        if missing:
            raise CannotBundle(f"{where}: {module} exports no {' and no '.join(sorted(missing))}")

    def _declare(self, where: str, module: str, line: str) -> None:
        """Record a top-level name; all modules share one scope in the bundle."""
        if _DECLARING.match(line) is None:
            return
        found = _DECLARATION.match(line)
        if found is None:
            raise CannotBundle(f"{where}: one name for each declaration at the top level expected")
        name = found[1]
        if name in self._declared:
            raise CannotBundle(f"{where}: {name} is declared in {self._declared[name]} too")
        self._declared[name] = module


def _refuse_forbidden(where: str, line: str) -> None:
    for pattern, what in _FORBIDDEN:
        if pattern.search(line) is not None:
            raise CannotBundle(f"{where}: {what} cannot be part of a page")
