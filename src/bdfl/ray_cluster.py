"""Connections to a Ray cluster: an existing one, or a temporary one on this machine.

Ray does not authenticate connections, so a cluster belongs in a private network. A cluster started here listens on
loopback only, has no dashboard and sends no usage statistics.
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
_STORE_BYTES = 100_000_000  # object store of a temporary cluster: tasks and results are small
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_PATIENCE_S = 5.0  # connect timeout
_OWN_LINE = "; see 'Many machines' in docs/sweeps.md"


class NoCluster(BdflError):
    """No Ray cluster at the address, or one that cannot be used from here."""


class OtherSoftware(BdflError):
    """A node whose software differs from ours, so that its results may differ too."""


@contextmanager
def open_ray(address: str | None, *, num_cpus: int | None = None) -> Iterator[Any]:
    """Connect to the cluster at `address`, or start one with `num_cpus` CPUs, and yield the module `ray`.

    An address is HOST:PORT, ray://HOST:PORT, or "auto" for a cluster that runs on this machine. An existing connection
    is used and left open.
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
    """CPUs of all live nodes, at least 1."""
    return max(1, int(ray.cluster_resources().get("CPU", 0)))


@cache
def list_software(with_torch: bool) -> tuple[tuple[str, str], ...]:
    """Names and versions of the software that determines the bytes of a result, bdfl's code by its digest."""
    names = (*_LIBRARIES, "torch") if with_torch else _LIBRARIES
    python = ".".join(platform.python_version_tuple()[:2])
    found = [("Python", python), ("bdfl", __version__), ("bdfl's code", _code_digest())]
    return (*found, *((name, _version(name)) for name in names))


def find_difference(expected: tuple[tuple[str, str], ...]) -> str | None:
    """Describe in one line the first difference between `expected` and this process's software; none if equal."""
    with_torch = any(name == "torch" for name, _ in expected)
    for (name, wanted), (_, found) in zip(expected, list_software(with_torch), strict=True):
        if wanted != found:
            return f"node {platform.node()}: {name} {found}, expected {wanted} as here{_OWN_LINE}"
    return None


def describe_trouble(error: BaseException) -> str:
    """The last line of a Ray error's message."""
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
    """Raise `OSError` if a HOST:PORT refuses connections: Ray itself would retry for minutes."""
    host, _, port = address.rpartition("/")[2].rpartition("@")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE_S).close()


def _shown(address: str | None) -> str:
    """An address without the credentials before its @, for messages."""
    return "this machine" if address is None else address.rpartition("@")[2]


@contextmanager
def _environment(added: dict[str, str]) -> Iterator[None]:
    """Set environment variables for Ray and its processes, except those that are set already."""
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
    """The first 12 hexadecimal digits of a SHA-256 over bdfl's sources."""
    folder, total = Path(__file__).parent, hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        total.update(path.relative_to(folder).as_posix().encode() + b"\0")
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:12]
