"""Run a campaign by its name: `python -m campaigns faults --seeds 500`."""

import runpy
import sys
from pathlib import Path


def main() -> None:
    names = sorted(path.parent.name for path in Path(__file__).parent.glob("*/__main__.py"))
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        sys.exit(f"usage: python -m campaigns NAME [OPTION]...; campaigns: {', '.join(names)}")
    name = sys.argv.pop(1)
    sys.argv[0] = f"python -m campaigns {name}"
    sys.modules["__main__"].__package__ = ""  # else click puts the package before the name
    runpy.run_module(f"campaigns.{name}", run_name="__main__")


if __name__ == "__main__":
    main()
