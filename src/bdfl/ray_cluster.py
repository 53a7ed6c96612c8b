"""A Ray cluster for pure work: one that is there, or processes of this machine for as long as they are needed.

Ray trusts whoever reaches its ports: a cluster belongs into a network of its own. What is started here listens on
loopback alone, has no dashboard and reports nothing to anybody.
"""

import hashlib
import os
import platform
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bdfl import __version__
from bdfl.errors import BdflError, one_line, require

AUTO, LOCAL = "auto", "local"
_LIBRARIES = ("numpy", "scipy")
_STORE_BYTES = 100_000_000  # of a cluster of our own: what travels is small
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_PATIENCE_S = 5.0  # for an answer at an address
_OWN_LINE = "; see 'Many machines' in docs/sweeps.md"


class NoCluster(BdflError):
    """No Ray cluster at the address, or one that cannot be used from here."""


class OtherSoftware(BdflError):
    """A node whose software differs from ours: its results could too."""


@contextmanager
def open_ray(address: str | None, *, num_cpus: int | None = None) -> Iterator[Any]:
    """The module `ray`, connected: to the cluster at `address`, or to one of our own with so many CPUs.

    An address is HOST:PORT, ray://HOST:PORT, or "auto" for a cluster that runs on this machine. A connection that is
    there already is used and left as it is.
    """
    require("the engine ray", "ray")
    import ray

    if ray.is_initialized():
        yield ray
        return
    with _environment(_QUIET):
        _connect(ray, address, num_cpus)
    try:
        yield ray
    finally:
        ray.shutdown()


def count_cpus(ray: Any) -> int:
    """CPUs of all nodes that are alive, at least 1."""
    return max(1, int(ray.cluster_resources().get("CPU", 0)))


@cache
def list_software(with_torch: bool) -> tuple[tuple[str, str], ...]:
    """Names and versions of what decides the bytes of a result, our own code by its digest."""
    names = (*_LIBRARIES, "torch") if with_torch else _LIBRARIES
    python = ".".join(platform.python_version_tuple()[:2])
    found = [("Python", python), ("bdfl", __version__), ("bdfl's code", _code_digest())]
    return (*found, *((name, _version(name)) for name in names))


def find_difference(expected: tuple[tuple[str, str], ...]) -> str | None:
    """What of `expected` is different in this process, in one line; none if all is the same."""
    with_torch = any(name == "torch" for name, _ in expected)
    for (name, wanted), (_, found) in zip(expected, list_software(with_torch), strict=True):
        if wanted != found:
            return f"node {platform.node()}: {name} {found}, expected {wanted} as here{_OWN_LINE}"
    return None


def describe_trouble(error: BaseException) -> str:
    """Ray's error in one line: the last that it says."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return one_line(lines[-1] if lines else type(error).__name__)[:300]


def _connect(ray: Any, address: str | None, num_cpus: int | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address is None or address == LOCAL:
            ray.init(
                address=LOCAL,
                num_cpus=num_cpus,
                include_dashboard=False,
                object_store_memory=_STORE_BYTES,
                _node_ip_address="127.0.0.1",
                **quiet,
            )
        else:
            _knock(address)
            ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
        raise NoCluster(
            f"ray: {_shown(address)}: {describe_trouble(error)}, a Ray cluster expected{_OWN_LINE}"
        ) from error


def _knock(address: str) -> None:
    """Raises where nobody answers: Ray itself would go on trying for minutes."""
    host, _, port = address.rpartition("/")[2].rpartition("@")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_PATIENCE_S).close()


def _shown(address: str | None) -> str:
    """An address as a message may repeat it: nothing before an @."""
    return "this machine" if address is None else address.rpartition("@")[2]


@contextmanager
def _environment(added: dict[str, str]) -> Iterator[None]:
    """What Ray and its processes find in the environment, unless it says otherwise already."""
    missing = {name: value for name, value in added.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _code_digest() -> str:
    """The first digits of SHA-256 over our own sources."""
    folder, total = Path(__file__).parent, hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        total.update(path.relative_to(folder).as_posix().encode() + b"\0")
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:12]
