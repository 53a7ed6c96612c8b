"""Static files of the explorer: a fixed list, made once, which a server serves and an export embeds."""

import gzip
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

STATIC_FOLDER = Path(__file__).parent / "static"
SHELL = "index.html"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True)
class StaticFile:
    """A file as it is served."""

    content: bytes
    kind: str
    tag: str  # ETag

    @cached_property
    def packed(self) -> bytes:
        """The content as gzip."""
        return gzip.compress(self.content, 6, mtime=0)


class StaticFiles:
    """The files of a folder by their names in it, such as js/app.js."""

    def __init__(self, folder: Path = STATIC_FOLDER) -> None:
        self._paths: Mapping[str, Path] = dict(_list_files(folder))
        self._kept: dict[str, tuple[tuple[int, int], StaticFile]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._paths)

    def find(self, name: str) -> StaticFile | None:
        """Return the file's current content; None if it is not on the list or was removed."""
        path = self._paths.get(name)
        if path is None:
            return None
        try:
            found = path.stat(follow_symlinks=False)
            state = (found.st_mtime_ns, found.st_size)
            kept = self._kept.get(name)
            if kept is None or kept[0] != state:
                content = path.read_bytes()
                tag = '"' + hashlib.sha256(content).hexdigest()[:16] + '"'
                kept = state, StaticFile(content, _KINDS[path.suffix], tag)
                self._kept[name] = kept
        except OSError:
            return None
        return kept[1]


def _list_files(folder: Path) -> Iterator[tuple[str, Path]]:
    for place, folders, files in os.walk(folder, followlinks=False):
        folders.sort()
        for name in sorted(files):
            path = Path(place) / name
            if path.suffix in _KINDS and not path.is_symlink():
                yield path.relative_to(folder).as_posix(), path
