"""Modules that `bdfl run quickstart` executes, and module hops from the command to one local training: `make hops`.

Counted with `sys.setprofile`. Module and class bodies, which every import executes, are not counted; a hop is a call
from one module of ours into another, library frames between them left out.
"""

import inspect
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType

import typer

import bdfl

MOST_MODULES, MOST_HOPS = 120, 7
_PACKAGE = Path(bdfl.__file__).parent
_COMMAND = "bdfl.cli.run", "run"
_TRAININGS = {("bdfl.learning.sgd", "train_client"), ("bdfl.learning.sgd", "train")}


class CallCounter:
    """A profile function: every module of ours that executes a function, and the way to the first local training."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.way: list[str] = []
        self._known: dict[CodeType, str | None] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if event != "call":
            return
        module = self._module(frame.f_code)
        if module is not None:
            self.modules.add(module)
            if not self.way and (module, frame.f_code.co_name) in _TRAININGS:
                self.way = self._walk_up(frame)

    def _module(self, code: CodeType) -> str | None:
        if code not in self._known:
            path = Path(code.co_filename)
            ours = path.is_relative_to(_PACKAGE) and code.co_flags & inspect.CO_OPTIMIZED
            name = ".".join(("bdfl", *path.relative_to(_PACKAGE).with_suffix("").parts)) if ours else None
            self._known[code] = None if name is None else name.removesuffix(".__init__")
        return self._known[code]

    def _walk_up(self, frame: FrameType) -> list[str]:
        """Return the modules from the command down to this frame."""
        way: list[str] = []
        step: FrameType | None = frame
        while step is not None:
            module = self._module(step.f_code)
            if module is not None and way[:1] != [module]:
                way.insert(0, module)
            if (module, step.f_code.co_name) == _COMMAND:
                break
            step = step.f_back
        return way


def count_calls(rounds: int) -> CallCounter:
    """Run the command's quickstart for so many rounds, and count."""
    from bdfl.cli import app

    counter = CallCounter()
    with TemporaryDirectory() as folder:
        arguments = ["run", "quickstart", "--rounds", str(rounds), "--out", str(Path(folder) / "run"), "--json"]
        threading.setprofile(counter)
        sys.setprofile(counter)
        try:
            app(arguments, standalone_mode=False)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    return counter


def main(rounds: int = 3, names: bool = False) -> None:
    """Print both counts; exit code 1 if one is above its limit."""
    counter = count_calls(rounds)
    hops = len(counter.way) - 1
    print(f"modules {len(counter.modules)} (at most {MOST_MODULES})")
    print(f"hops    {hops} (at most {MOST_HOPS}): {' > '.join(counter.way)}")
    if names:
        print(*sorted(counter.modules), sep="\n")
    if len(counter.modules) > MOST_MODULES or hops > MOST_HOPS:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
