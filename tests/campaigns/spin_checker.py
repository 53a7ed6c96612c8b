"""Spin for the model of the agreement: found on the machine, installed where that may be done.

`python -m tests.campaigns.spin_checker` (`make browser`) installs Debian's spin and gcc if there are none. It never
fails: where nothing can be installed it says so in one line, and tests with Spin are skipped, unless
`BDFL_BROWSER_REQUIRED` is set.
"""

import pytest

from campaigns.model.spin import MISSING, find_spin
from tests.browser.chromium import install_packages, is_required


def require_spin() -> None:
    """Goes on only where Spin is; tests that need it do not run without."""
    if find_spin() is None:
        if is_required():
            pytest.fail(MISSING, pytrace=False)
        pytest.skip(MISSING)


def main() -> None:
    """Sees to it that there is a Spin, and says nothing if there was one."""
    if find_spin() is not None:
        return
    print("no Spin found: installing it", flush=True)
    why = install_packages("spin", "gcc", "libc6-dev")
    print(f"Spin: {find_spin()}" if why is None else f"{MISSING} ({why})", flush=True)


if __name__ == "__main__":
    main()
