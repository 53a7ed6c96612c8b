"""Node.js for the verifier in JavaScript: found on the machine, installed where that may be done.

`python -m tests.verifiers.nodejs` (`make browser`) installs Debian's nodejs if there is none. It never fails: where
nothing can be installed it says so in one line, and tests with Node.js are skipped, unless `BDFL_BROWSER_REQUIRED` is
set.
"""

from pathlib import Path

import pytest

from campaigns.verifiers.flips import MISSING, find_node
from tests.browser.chromium import install_packages, is_required


def require_node() -> Path:
    """Where Node.js is; tests that need it do not run without."""
    found = find_node()
    if found is None:
        if is_required():
            pytest.fail(MISSING, pytrace=False)
        pytest.skip(MISSING)
    return found


def main() -> None:
    """Sees to it that there is a Node.js, and says nothing if there was one."""
    if find_node() is not None:
        return
    print("no Node.js found: installing it", flush=True)
    why = install_packages("nodejs")
    print(f"Node.js: {find_node()}" if why is None else f"{MISSING} ({why})", flush=True)


if __name__ == "__main__":
    main()
