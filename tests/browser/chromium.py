"""The browser that tests and pictures look through: found on the machine, installed where that may be done.

`python -m tests.browser.chromium` (`make browser`) installs Debian's chromium and a font if no browser is there. It
never fails: where nothing can be installed it says so in one line, and the tests in a browser are skipped.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

CHOICE = "BDFL_BROWSER"  # the environment variable with the path of a browser to use
REQUIRED = "BDFL_BROWSER_REQUIRED"  # set: being without a browser is a failure
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PACKAGES = ("chromium", "fonts-dejavu-core")
_LIMIT_S = 900.0
MISSING = f"no browser: `make browser` as root installs chromium, or {CHOICE} names one; tests in a browser are skipped"


def find_browser(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The chosen browser, else the first chromium on the path; none: there is none."""
    path = environment.get("PATH", os.defpath)
    names = (environment[CHOICE],) if environment.get(CHOICE) else _NAMES
    return next((Path(found) for name in names if (found := shutil.which(name, path=path))), None)


def is_required(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether tests must not be skipped for want of a browser."""
    return environment.get(REQUIRED, "") not in ("", "0")


def install_browser() -> str | None:
    """Installs chromium by apt-get; why it could not be done, in one line, or none if it was."""
    why = install_packages(*_PACKAGES)
    return why if why or find_browser() else "installed, but not found on the path"


def install_packages(*packages: str) -> str | None:
    """Installs packages by apt-get; why it could not be done, in one line, or none if it was."""
    prefix = _find_rights()
    if prefix is None:
        return "apt-get as root, or sudo without a password, is needed to install it"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (("update",), ("install", "-y", "--no-install-recommends", *packages)):
        command = [*prefix, "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=600", *arguments]  # others may be installing
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            return f"{' '.join(command)}: not done in {_LIMIT_S:.0f} s"
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip() or "nothing said").splitlines()[-1]
            return f"{' '.join(command)}: exit code {done.returncode}: {said}"
    return None


def _find_rights() -> list[str] | None:
    """What goes before apt-get so that it may install; none: it may not."""
    if shutil.which("apt-get") is None:
        return None
    if os.geteuid() == 0:
        return []
    is_let = shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0
    return ["sudo", "-n"] if is_let else None


def main() -> None:
    """Sees to it that there is a browser, and says nothing if there was one."""
    if find_browser() is not None:
        return
    print("no browser found: installing chromium", flush=True)
    why = install_browser()
    print(f"browser: {find_browser()}" if why is None else f"{MISSING} ({why})", flush=True)


if __name__ == "__main__":
    main()
