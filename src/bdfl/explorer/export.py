"""Static export of runs: one page with all its data, and the JSON documents beside it.

The page opens from a disk or any web host. Its content security policy allows only the script written here, by its
hash, and no requests. Browsers load no modules from `file://`: the pages' modules are bundled into one classic script.
They use a few plain forms of import and export only; all other forms are rejected.
"""

import base64
import hashlib
import html
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

import msgspec

from bdfl import __version__
from bdfl.errors import BdflError
from bdfl.explorer.documents import MAX_LISTED, Overview, WhatIfSettings
from bdfl.explorer.library import Library
from bdfl.explorer.static_files import SHELL, StaticFiles

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


PAGE = "index.html"
MANIFEST = "export.json"
MAX_BYTES = 64 * 2**20  # of data in the page, unless the number of blocks is given
CHUNK = 500  # rounds in one part of a long time series, as the pages request them
_WHAT_IF_S = 30.0  # for the what-if pages of one run
_WAIT_S = 20.0  # for results of the worker process
_POLL_S = 0.2
_SCRIPTS = ("vendor/uPlot.iife.min.js",)
_STYLES = ("vendor/uPlot.min.css", "style.css")
_MODULES = "js/"
_FIRST_MODULE = "app.js"
_ICON = "icon.svg"
_LOADED = re.compile(r'<(?:script|link)\b[^>]*(?:src|href)="/static/[^"]*"[^>]*>(?:</script>)?\n?')
_CHARSET = '<meta charset="utf-8">\n'

OnProgress = Callable[[int, int], None]


class CannotExport(BdflError):
    """A folder with other contents, or pages that cannot be exported."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Files of an export, so that the next one can replace them."""

    bdfl: str
    files: list[str]


@dataclass(frozen=True)
class Exported:
    """Result of an export."""

    page: Path
    num_files: int
    num_bytes: int
    notes: tuple[str, ...]  # parts left out


@dataclass(frozen=True)
class _Piece:
    """A document and the address under which pages request it."""

    address: str
    content: bytes
    file: str | None  # beside the page; none: in the page only
    is_raw: bool = False

    def in_page(self) -> bytes:
        """Return JSON that cannot close the enclosing element."""
        if self.is_raw:
            return b'"' + base64.b64encode(self.content) + b'"'
        return self.content.replace(b"<", b"\\u003c")


@dataclass
class _Progress:
    """Progress of an export, and notes on parts left out."""

    last: int | None
    on_progress: OnProgress
    total: int = 0
    done: int = 0
    num_bytes: int = 0
    notes: list[str] = field(default_factory=list)

    def count(self, piece: _Piece | None) -> None:
        self.done += 1
        self.num_bytes += 0 if piece is None else len(piece.content)
        self.on_progress(min(self.done, self.total), self.total)

    @property
    def is_full(self) -> bool:
        return self.last is None and self.num_bytes > MAX_BYTES


def export_site(
    library: Library, folder: Path, *, last: int | None = None, on_progress: OnProgress = lambda done, total: None
) -> Exported:
    """Write all runs into `folder`, with details of their `last` blocks (default: up to `MAX_BYTES`)."""
    files = StaticFiles()
    opening, ending = _page_parts(files, library.overview(0).name)
    _clear(folder)
    account = _Progress(last, on_progress)
    written: list[str] = []
    draft = folder / f".{PAGE}.tmp"
    try:
        with draft.open("wb") as page:
            page.write(opening)
            separator = b"{\n"
            for piece in _all_pieces(library, account):
                page.write(separator + msgspec.json.encode(piece.address).replace(b"<", b"\\u003c") + b":")
                page.write(piece.in_page())
                separator = b",\n"
                if piece.file is not None:
                    _write(folder, piece.file, piece.content)
                    written.append(piece.file)
            page.write(b"}" + ending)
        draft.replace(folder / PAGE)
    finally:
        draft.unlink(missing_ok=True)
    written.append(PAGE)
    manifest = Manifest(bdfl=__version__, files=written)
    (folder / MANIFEST).write_bytes(msgspec.json.encode(manifest) + b"\n")
    num_bytes = sum((folder / name).stat().st_size for name in written)
    return Exported(folder / PAGE, len(written) + 1, num_bytes, tuple(account.notes))


# The folder


def _clear(folder: Path) -> None:
    """Create the folder, or remove an older export from it; raise if it has other contents."""
    if not folder.exists():
        folder.mkdir(parents=True)
        return
    if not folder.is_dir():
        raise CannotExport(f"{folder}: a folder expected")
    if not any(folder.iterdir()):
        return
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError):
        raise CannotExport(f"{folder}: holds something else than an export, an empty folder expected") from None
    for name in manifest.files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name:
            raise CannotExport(f"{folder / MANIFEST}: names {name}, a file in the folder expected")
        if _has_no_links(folder, path):
            (folder / path).unlink(missing_ok=True)


def _has_no_links(folder: Path, path: PurePosixPath) -> bool:
    """Return whether no parent folder of a file is a symbolic link."""
    return not any((folder / parent).is_symlink() for parent in path.parents)


def _write(folder: Path, name: str, content: bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not _has_no_links(folder, PurePosixPath(name)) or path.is_symlink():
        raise CannotExport(f"{path}: leads elsewhere, a plain file expected")
    path.write_bytes(content)


# The page


def _page_parts(files: StaticFiles, title: str) -> tuple[bytes, bytes]:
    """Return the page before the data and after it."""
    scripts = [_text(files, name) for name in _SCRIPTS]
    scripts.append(bundle(_FIRST_MODULE, lambda name: _text(files, _MODULES + name)))
    script = "\n" + ";\n".join(part.rstrip().removesuffix(";") for part in scripts) + "\n"
    style = "\n" + "\n".join(_text(files, name) for name in _STYLES)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    shell = (
        _LOADED.sub("", _text(files, SHELL))
        .replace('href="/index.json"', 'href="index.json"')
        .replace(">/index.json<", ">index.json<")
    )
    shell = shell.replace(_CHARSET, f'{_CHARSET}<meta http-equiv="Content-Security-Policy" content="{policy}">\n', 1)
    shell = re.sub(r"<title>[^<]*</title>", lambda _: f"<title>{html.escape(title)}</title>", shell, count=1)
    icon = base64.b64encode(_text(files, _ICON).encode()).decode()
    head = f'<link rel="icon" href="data:image/svg+xml;base64,{icon}">\n<style>{style}</style>\n</head>'
    before, _, after = shell.replace("</head>", head, 1).partition("</body>")
    opening = f'{before}<script type="application/json" id="data">'
    ending = f"</script>\n<script>{script}</script>\n</body>{after}"
    return opening.encode(), ending.encode()


def _text(files: StaticFiles, name: str) -> str:
    found = files.find(name)
    if found is None:
        raise CannotExport(f"static/{name}: missing, install bdfl again")
    return found.content.decode()


def _hash(text: str) -> str:
    """Return the source expression of an inline script or style in a content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# The data


def _all_pieces(library: Library, account: _Progress) -> Iterator[_Piece]:
    overviews = [library.overview(run) for run in range(library.num_runs)]
    account.total = 1
    for overview in overviews:  # an estimate
        num_blocks = overview.height if account.last is None else min(account.last, overview.height)
        account.total += 6 + len(overview.clients) + 5 * num_blocks
    yield from _take(account, "/compare.json", "compare.json", library.compare)
    for run, overview in enumerate(overviews):
        yield from _run_pieces(library, run, overview, account)


def _run_pieces(library: Library, run: int, overview: Overview, account: _Progress) -> Iterator[_Piece]:
    """Yield all documents of a run: those of the whole run first, then its blocks from the newest on."""
    place = "" if run == 0 else f"run-{run}/"
    height = overview.height

    def take(address: str, read: Callable[[], object], file: str | None = None) -> Iterator[_Piece]:
        name, _, query = address.partition("?")
        parameters = [*([f"run={run}"] if run else []), *([query] if query else [])]
        spelled = f"/{name}?{'&'.join(parameters)}" if parameters else f"/{name}"
        return _take(account, spelled, place + (file or name), read)

    shown = msgspec.structs.replace(overview, is_exported=True, is_live=False)
    yield from take("index.json", lambda: shown)
    yield from take("rounds.json", lambda: library.rounds(run))
    yield from take("raw/genesis", lambda: library.raw_genesis(run))
    yield from take("network.json", lambda: library.network(run))
    for client in range(len(overview.clients)):
        yield from take(f"client/{client}.json", partial(library.client, run, client))
    yield from take("verify.json", lambda: _wait_for(lambda: library.verify(run)))
    yield from take("frontier.json", lambda: _wait_for(lambda: library.frontier(run)))
    yield from take("what-if.json", lambda: library.what_if(run, None, WhatIfSettings()))
    lowest = 1 if account.last is None else max(1, height - account.last + 1)
    what_if_ends_s = time.monotonic() + _WHAT_IF_S
    num_what_ifs, first = 0, height + 1
    for one in range(height, lowest - 1, -1):
        if account.is_full:
            break
        first = one
        yield from take(f"block/{one}.json", partial(library.block, run, one))
        yield from take(f"raw/{one}", partial(library.raw_block, run, one))
        yield from take(f"network.json?round={one}", partial(library.network, run, one), f"network/{one}.json")
        yield from take(f"model/{one}.json", partial(library.model, run, one))
        if time.monotonic() < what_if_ends_s:
            for piece in take(f"what-if/{one}.json", partial(library.what_if, run, one, WhatIfSettings())):
                num_what_ifs += 1
                yield piece
    yield from take("blocks.json", lambda: _block_rows(library, run, first, height))
    is_long = library.rounds(run, points=1).num_rounds > 2000
    # single rounds of a long run, as far back as its exported blocks
    for start in range((first - 1) // CHUNK * CHUNK + 1, height + 1, CHUNK) if is_long else ():
        end = min(start + CHUNK - 1, height)
        query = f"rounds.json?first={start}&last={end}&points={CHUNK}"
        yield from take(query, partial(library.rounds, run, start, end, CHUNK), f"rounds/{start}.json")
    num_blocks = height - first + 1
    if first > 1 and num_blocks > 0:
        account.notes.append(f"{overview.name}: details of the newest {num_blocks} of {height} blocks")
    if num_what_ifs < num_blocks:
        account.notes.append(f"{overview.name}: what-if of {num_what_ifs} rounds; others need the server")


def _block_rows(library: Library, run: int, first: int, last: int) -> object:
    """Return the list of all blocks from `first` on, which the library returns in pages."""
    newest = library.blocks(run)
    rows = []
    while last >= first:
        page = library.blocks(run, max(first, last - MAX_LISTED + 1), last)
        if not page.blocks:
            break
        rows += page.blocks
        last = page.blocks[-1].height - 1
    return msgspec.structs.replace(newest, first=first, blocks=rows)


def _take(account: _Progress, address: str, file: str, read: Callable[[], object]) -> Iterator[_Piece]:
    """Yield the document returned by `read`, unless it raises."""
    try:
        found = read()
    except BdflError:  # a damaged block, a record without a chain: the pages show that it is missing
        account.count(None)
        return
    is_raw = isinstance(found, bytes)
    piece = _Piece(address, found if isinstance(found, bytes) else msgspec.json.encode(found), file, is_raw)
    account.count(piece)
    yield piece


def _wait_for(read: Callable[[], object]) -> object:
    """Poll a result of the worker process until it is done or time is out; return the last state."""
    deadline_s = time.monotonic() + _WAIT_S
    while True:
        found = read()
        if getattr(found, "state", "done") != "computing" or time.monotonic() > deadline_s:
            return found
        time.sleep(_POLL_S)
