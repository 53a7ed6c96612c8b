"""Channel gains: fading, shadowing, and gains recorded in a trace.

Recorded channel gains from a CSV or Parquet file.

Long layout: columns `round`, `client`, `gain`, one row per value. Wide layout: a column `round` and one column per
client, named by its number. Rounds count from 1, clients from 0. Additional rounds, clients and columns are ignored.
"""

import csv
import math
from collections.abc import Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray

from bdfl.errors import BdflError, one_line, require
from bdfl.scenario import Fading, FadingKind
from bdfl.storage import open_parquet, open_regular
from bdfl.types import PerClient

# Small-scale fading and shadowing of a radio channel, as power gains.


def draw_fading(rng: np.random.Generator, fading: Fading, num_clients: int) -> PerClient:
    """Small-scale power gain rho_i (dimensionless, mean 1), (clients,): [Li24, Section III-D].

    `rayleigh` is exponential; `rician` is |sqrt(K/(K+1)) + n|^2 with complex normal n of power 1/(K+1); `nakagami` is
    gamma with shape m and mean 1.
    """
    match fading.kind:
        case FadingKind.NONE:
            return np.ones(num_clients)
        case FadingKind.RAYLEIGH:
            return rng.standard_exponential(num_clients)
        case FadingKind.RICIAN:
            direct = math.sqrt(fading.k_factor / (fading.k_factor + 1.0))
            scattered = math.sqrt(0.5 / (fading.k_factor + 1.0)) * rng.standard_normal((num_clients, 2))
            return (direct + scattered[:, 0]) ** 2 + scattered[:, 1] ** 2
        case FadingKind.NAKAGAMI:
            return rng.standard_gamma(fading.shape, num_clients) / fading.shape
        case unknown:
            assert_never(unknown)


def draw_shadowing(rng: np.random.Generator, shadowing_db: float, num_clients: int) -> PerClient:
    """Shadowing of the links to one access point as power gain (dimensionless, median 1), (clients,).

    Normal in dB with standard deviation `shadowing_db`, hence log-normal.
    """
    return 10.0 ** (shadowing_db / 10.0 * rng.standard_normal(num_clients))


_MAX_CELLS = 2**25
_LEAST_BYTES = 2**26  # always allowed for a CSV file; more only in proportion to its gains
_BYTES_PER_GAIN = 64

Column: TypeAlias = NDArray[np.float64]


class BadTrace(BdflError):
    """A trace of recorded gains that cannot be used: the file, the fault found and the form expected."""

    def __init__(self, path: str, found: str, expected: str) -> None:
        super().__init__(path, found, expected)
        self.path = path
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        return f"radio.trace {self.path}: {self.found}, expected {self.expected}"


def read_gain_trace(path: Path, num_rounds: int, num_clients: int) -> NDArray[np.float64]:
    """Recorded power gains (dimensionless), (rounds, clients). Raises `BadTrace`."""
    if not path.is_file():
        raise BadTrace(str(path), "no such file", "a CSV or Parquet file")
    columns = (
        _read_parquet(path)
        if path.suffix.lower() in {".parquet", ".pq"}
        else _read_csv(path, _LEAST_BYTES + _BYTES_PER_GAIN * num_rounds * num_clients)
    )
    wide = {int(name): name for name in columns if name.isascii() and name.isdigit() and int(name) < num_clients}
    is_long = "gain" in columns and "client" in columns
    if "round" not in columns or not (is_long or wide):
        found = f"columns {', '.join(columns) or 'none'}"
        raise BadTrace(str(path), found, "round, client, gain, or round and one column per client: 0, 1, ...")
    if is_long:
        row, client, gain = columns["round"], columns["client"], columns["gain"]
    else:
        row = np.tile(columns["round"], len(wide))
        client = np.repeat(np.array(list(wide), dtype=np.float64), len(columns["round"]))
        gain = np.concatenate([columns[name] for name in wide.values()])
    return _arrange(path, row, client, gain, num_rounds, num_clients)


def _arrange(path: Path, row: Column, client: Column, gain: Column, num_rounds: int, num_clients: int) -> Column:
    """Arrange the values in a (rounds, clients) array; each must occur once, finite and not negative."""
    for name, numbers, first in (("round", row, 1), ("client", client, 0)):
        wrong = ~((numbers >= first) & (numbers == np.floor(numbers)))  # True for NaN
        if wrong.any():
            raise BadTrace(str(path), f"{name} {numbers[np.argmax(wrong)]:g}", f"whole numbers from {first}")
    wanted = (row <= num_rounds) & (client < num_clients)
    round_index, client_index = row[wanted].astype(np.int64) - 1, client[wanted].astype(np.int64)
    count = np.zeros((num_rounds, num_clients), dtype=np.int64)
    np.add.at(count, (round_index, client_index), 1)
    if not (count == 1).all():
        where, who = np.unravel_index(np.argmax(count != 1), count.shape)
        found = "no gain" if count[where, who] == 0 else f"{count[where, who]} gains"
        expected = f"one for each of {num_rounds} rounds and {num_clients} clients"
        raise BadTrace(str(path), f"{found} for round {where + 1}, client {who}", expected)
    gains = np.empty((num_rounds, num_clients))
    gains[round_index, client_index] = gain[wanted]
    wrong = ~(np.isfinite(gains) & (gains >= 0))
    if wrong.any():
        where, who = np.unravel_index(np.argmax(wrong), wrong.shape)
        found = f"gain {gains[where, who]:g} for round {where + 1}, client {who}"
        raise BadTrace(str(path), found, "a finite number of at least 0")
    return gains


def _read_csv(path: Path, max_bytes: int) -> Mapping[str, Column]:
    """Read the columns by name; the first line names them."""
    try:
        with TextIOWrapper(open_regular(path, max_bytes), encoding="utf-8-sig", newline="") as file:
            names = [name.strip() for name in next(csv.reader([file.readline()]), [])]
            lines = [line for line in file if line.strip()]
            table = np.loadtxt(lines, delimiter=",", comments=None, ndmin=2) if lines else np.empty((0, len(names)))
    except (OSError, ValueError, csv.Error) as error:
        reason = one_line(str(error).split(";")[0]).rstrip(".")
        raise BadTrace(str(path), reason, "a line of column names, then numbers between commas") from None
    if table.shape[1] != len(names):
        raise BadTrace(str(path), f"{table.shape[1]} values in a row", f"one for each of {len(names)} columns")
    return dict(zip(names, table.T, strict=True))


def _read_parquet(path: Path) -> Mapping[str, Column]:
    """Read the columns by name; needs pyarrow."""
    require("a trace in Parquet", "pyarrow.parquet")
    try:
        with open_parquet(path, _MAX_CELLS) as file:
            table = file.read()
        return {name: np.asarray(table[name].to_numpy(), dtype=np.float64) for name in table.column_names}
    except (OSError, ValueError, TypeError) as error:  # pyarrow's own errors derive from these
        reason = one_line(error)
        raise BadTrace(str(path), reason, "a Parquet file with columns of numbers") from None
