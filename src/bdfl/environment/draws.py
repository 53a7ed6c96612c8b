"""Random draws of a run: its streams, channel gains, presence of clients, and the mining race.

A stream is named by (seed, purpose, round, client) and independent of the order of use. Element i of the first vector
drawn from it belongs to client i, and stays the same when clients are added.

A trace of recorded gains is a CSV or Parquet file. Long layout: columns `round`, `client`, `gain`, one row per value.
Wide layout: a column `round` and one column per client, named by its number. Rounds count from 1, clients from 0.
Additional rounds, clients and columns are ignored. A trace of energies is the same with `joules` for `gain`.

A trace of availability is a CSV or Parquet file with columns `client`, `from`, `to`: a client is there from one round
to another, both included, in as many rows as it takes; to `inf` means to the end.
"""

import csv
import math
from collections.abc import Iterator, Mapping
from enum import IntEnum
from io import TextIOWrapper
from itertools import repeat
from pathlib import Path
from typing import TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray

from bdfl.errors import Unexpected, one_line, require
from bdfl.scenario import Choice, Fading, FadingKind, Lognormal, MiningMode, Normal, PerClientValue, Scenario, Uniform
from bdfl.storage import open_parquet, open_regular
from bdfl.types import PerClient, PerClientMask


class Purpose(IntEnum):
    """The use of a random stream. Numbers are part of a run's definition: never reuse or change one."""

    SAMPLES = 1
    CYCLES_PER_SAMPLE = 2
    CAPACITANCE = 3
    POWER = 4
    POWER_MAX = 5
    MODEL_BITS = 6
    CPU_MAX = 7
    MINING_MAX = 8
    INITIAL_CPU = 9
    INITIAL_MINING = 10
    ENERGY_BUDGET = 11
    DISTANCE = 12
    DIRECTION = 13
    PLACE = 14
    WAYPOINT = 15
    SHADOWING = 16  # the "round" is the number of the access point
    FADING = 17
    LABELS = 18
    PARTICIPATION = 19
    MINING = 20  # time until a sampled block is found, and its miner
    SCHEDULER = 21
    PARTITION = 22  # assignment of samples to clients
    MODEL = 23  # the initial weights
    BATCHES = 24  # a client's mini-batches in a round
    TRAINING = 25  # other randomness of a client's training, such as dropout
    ATTACK = 26  # the noise that a misbehaving client sends in a round
    FAULTS = 27  # faults of machines and messages
    NOISE = 28  # gradient noise of a client's private training in a round
    SWEEP = 29  # settings of a random sweep; its "round" is the number of the draw, its "client" the key
    AUGMENTATION = 30  # random changes of a client's training images in a round
    LEAVING = 31  # chance that a client leaves
    RETURNING = 32  # chance that a client returns
    AVAILABILITY = 33  # whether a client leaves or returns in a round
    BATTERY_CHARGE = 34
    BATTERY_CAPACITY = 35


def stream(seed: int, purpose: Purpose, round: int = 0, client: int | None = None) -> np.random.Generator:
    """Return the random stream of one purpose in one round; round 0 stands for the whole run.

    A purpose draws for all clients from one stream, or for each from its own, never both: numpy does not distinguish a
    missing client from client 0.
    """
    words = [seed, purpose, round] if client is None else [seed, purpose, round, client]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


def draw_values(rng: np.random.Generator, value: PerClientValue, num_clients: int) -> PerClient:
    """A value for every client, (clients,): the number or list as given, or draws from the distribution."""
    match value:
        case Uniform(low=low, high=high):
            return low + (high - low) * rng.random(num_clients)
        case Lognormal(median=median, sigma=sigma):
            return median * np.exp(sigma * rng.standard_normal(num_clients))
        case Normal(mean=mean, std=std, low=low, high=high):
            return np.clip(mean + std * rng.standard_normal(num_clients), low, high)
        case Choice(values=values, weights=weights):
            shares = np.cumsum(np.ones(len(values)) if weights is None else weights)
            picked = np.searchsorted(shares / shares[-1], rng.random(num_clients), side="right")
            return np.asarray(values, dtype=np.float64)[picked]
        case tuple():
            return np.array(value, dtype=np.float64)
        case _:
            return np.full(num_clients, float(value))


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
_LEAST_BYTES = 2**26  # always allowed for a CSV file; more only in proportion to the run's rounds times clients
_BYTES_PER_CELL = 64

Column: TypeAlias = NDArray[np.float64]


class BadTrace(Unexpected):
    """A recorded trace that cannot be used."""

    kind = "radio.trace "


class BadEnergyTrace(BadTrace):
    """A trace of recorded energies that cannot be used."""

    kind = "energy.trace "


class BadAvailability(BadTrace):
    """A trace of availability that cannot be used."""

    kind = "availability.trace "


def read_gain_trace(path: Path, num_rounds: int, num_clients: int) -> NDArray[np.float64]:
    """Recorded power gains (dimensionless), (rounds, clients). Raises `BadTrace`."""
    return _read_trace(path, num_rounds, num_clients, "gain", BadTrace)


def read_energy_trace(path: Path, num_rounds: int, num_clients: int) -> NDArray[np.float64]:
    """Recorded energies (J), (rounds, clients). Raises `BadEnergyTrace`."""
    return _read_trace(path, num_rounds, num_clients, "joules", BadEnergyTrace)


def _read_trace(path: Path, num_rounds: int, num_clients: int, name: str, bad: type[BadTrace]) -> Column:
    columns = _read_columns(path, num_rounds * num_clients, bad)
    wide = {int(name): name for name in columns if name.isascii() and name.isdigit() and int(name) < num_clients}
    is_long = name in columns and "client" in columns
    if "round" not in columns or not (is_long or wide):
        found = f"columns {', '.join(columns) or 'none'}"
        raise bad(str(path), found, f"round, client, {name}, or round and one column per client: 0, 1, ...")
    if is_long:
        row, client, value = columns["round"], columns["client"], columns[name]
    else:
        row = np.tile(columns["round"], len(wide))
        client = np.repeat(np.array(list(wide), dtype=np.float64), len(columns["round"]))
        value = np.concatenate([columns[column] for column in wide.values()])
    return _arrange(path, row, client, value, (num_rounds, num_clients), name, bad)


def _arrange(
    path: Path, row: Column, client: Column, value: Column, shape: tuple[int, int], kind: str, bad: type[BadTrace]
) -> Column:
    """Arrange the values in a (rounds, clients) array; each must occur once, finite and not negative."""
    _validate_whole(path, {"round": (row, 1), "client": (client, 0)}, bad)
    num_rounds, num_clients = shape
    wanted = (row <= num_rounds) & (client < num_clients)
    round_index, client_index = row[wanted].astype(np.int64) - 1, client[wanted].astype(np.int64)
    count = np.zeros((num_rounds, num_clients), dtype=np.int64)
    np.add.at(count, (round_index, client_index), 1)
    if not (count == 1).all():
        where, who = np.unravel_index(np.argmax(count != 1), count.shape)
        found = f"no {kind}" if count[where, who] == 0 else f"{count[where, who]} {kind.removesuffix('s')}s"
        expected = f"one for each of {num_rounds} rounds and {num_clients} clients"
        raise bad(str(path), f"{found} for round {where + 1}, client {who}", expected)
    values = np.empty((num_rounds, num_clients))
    values[round_index, client_index] = value[wanted]
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any():
        where, who = np.unravel_index(np.argmax(wrong), wrong.shape)
        found = f"{kind} {values[where, who]:g} for round {where + 1}, client {who}"
        raise bad(str(path), found, "a finite number of at least 0")
    return values


def read_availability(path: Path, num_rounds: int, num_clients: int) -> NDArray[np.bool_]:
    """Return True where a client is there, (rounds, clients): never, without a row. Raises `BadAvailability`."""
    columns = _read_columns(path, num_rounds * num_clients, BadAvailability)
    if not {"client", "from", "to"} <= columns.keys():
        raise BadAvailability(str(path), f"columns {', '.join(columns) or 'none'}", "client, from, to")
    client, first, last = columns["client"], columns["from"], columns["to"]
    _validate_whole(path, {"client": (client, 0), "from": (first, 1), "to": (last, 1)}, BadAvailability)
    if (last < first).any():
        row = int(np.argmax(last < first))
        found = f"client {client[row]:g} from {first[row]:g} to {last[row]:g}"
        raise BadAvailability(str(path), found, "a last round not before the first")
    wanted = (client < num_clients) & (first <= num_rounds)
    num_begun = np.zeros((num_rounds + 1, num_clients), dtype=np.int64)  # stays begun less those ended before
    who = client[wanted].astype(np.int64)
    np.add.at(num_begun, (first[wanted].astype(np.int64) - 1, who), 1)
    np.add.at(num_begun, (np.minimum(last[wanted], num_rounds).astype(np.int64), who), -1)
    present: NDArray[np.bool_] = np.cumsum(num_begun, axis=0)[:num_rounds] > 0
    return present


def _validate_whole(path: Path, columns: Mapping[str, tuple[Column, int]], bad: type[BadTrace]) -> None:
    """Raise unless all numbers of each column are whole, from its first on."""
    for name, (numbers, first) in columns.items():
        wrong = ~((numbers >= first) & (numbers == np.floor(numbers)))  # True for NaN
        if wrong.any():
            raise bad(str(path), f"{name} {numbers[np.argmax(wrong)]:g}", f"whole numbers from {first}")


def _read_columns(path: Path, num_cells: int, bad: type[BadTrace]) -> Mapping[str, Column]:
    """Read the columns by name; the allowed size of a CSV file grows with the cells of the run."""
    if not path.is_file():
        raise bad(str(path), "no such file", "a CSV or Parquet file")
    if path.suffix.lower() in {".parquet", ".pq"}:
        return _read_parquet(path, bad)
    return _read_csv(path, _LEAST_BYTES + _BYTES_PER_CELL * num_cells, bad)


def _read_csv(path: Path, max_bytes: int, bad: type[BadTrace]) -> Mapping[str, Column]:
    """Read the columns by name; the first line names them."""
    try:
        with TextIOWrapper(open_regular(path, max_bytes), encoding="utf-8-sig", newline="") as file:
            names = [name.strip() for name in next(csv.reader([file.readline()]), [])]
            lines = [line for line in file if line.strip()]
            table = np.loadtxt(lines, delimiter=",", comments=None, ndmin=2) if lines else np.empty((0, len(names)))
    except (OSError, ValueError, csv.Error) as error:
        reason = one_line(str(error).split(";")[0]).rstrip(".")
        raise bad(str(path), reason, "a line of column names, then numbers between commas") from None
    if table.shape[1] != len(names):
        raise bad(str(path), f"{table.shape[1]} values in a row", f"one for each of {len(names)} columns")
    return dict(zip(names, table.T, strict=True))


def _read_parquet(path: Path, bad: type[BadTrace]) -> Mapping[str, Column]:
    """Read the columns by name; needs pyarrow."""
    require("a trace in Parquet", "pyarrow.parquet")
    try:
        with open_parquet(path, _MAX_CELLS) as file:
            table = file.read()
        return {name: np.asarray(table[name].to_numpy(), dtype=np.float64) for name in table.column_names}
    except (OSError, ValueError, TypeError) as error:  # pyarrow's own errors derive from these
        reason = one_line(error)
        raise bad(str(path), reason, "a Parquet file with columns of numbers") from None


# Presence of the clients, which come and go.


def draw_availability(scenario: Scenario) -> Iterator[PerClientMask]:
    """Yield who is there in rounds 1, 2, ..., (clients,) each, independent of all else.

    Each client is a two-state Markov chain in its long-run share, or follows the trace. A bad trace raises
    `BadAvailability` in this call.
    """
    settings, num_clients, seed = scenario.availability, scenario.clients.count, scenario.seed
    if settings.trace is not None:
        return iter(read_availability(Path(settings.trace), scenario.rounds, num_clients))
    if not settings.is_on:
        return repeat(np.ones(num_clients, dtype=np.bool_), scenario.rounds)
    leave = draw_values(stream(seed, Purpose.LEAVING), settings.leave_probability, num_clients)
    back = draw_values(stream(seed, Purpose.RETURNING), settings.return_probability, num_clients)
    return _walk_availability(leave, back, seed, scenario.rounds)


def _walk_availability(leave: PerClient, back: PerClient, seed: int, num_rounds: int) -> Iterator[PerClientMask]:
    share = np.divide(back, leave + back, out=np.ones_like(back), where=leave > 0)
    stays = share  # chance to be there: in round 1 the long-run share, then by the round before
    for round in range(1, num_rounds + 1):
        is_there = stream(seed, Purpose.AVAILABILITY, round).random(len(leave)) < stays
        yield is_there
        stays = np.where(is_there, 1.0 - leave, back)


# The mining race: time and winner of a block, drawn at random instead of planned.


def draw_finding(rng: np.random.Generator, difficulty: float, mining_hz: PerClient) -> tuple[float, int]:
    """Time until a block is found (s), and the client that finds it.

    [Li24, Section III-E] Exponential with mean alpha / sum F; client i wins with probability F_i / sum F.
    """
    total_hz = float(np.sum(mining_hz))
    mining_s = float(rng.exponential()) * difficulty / total_hz
    share = np.cumsum(mining_hz)
    winner = int(np.searchsorted(share, rng.random() * share[-1], side="right"))
    return mining_s, winner


def draw_lags(rng: np.random.Generator, difficulty: float, mining_hz: PerClient, winner: int) -> PerClient:
    """Delay (s) after the winner at which each client would have found a block, (clients,); infinity without mining.

    The search is memoryless: once the first block is found, the remaining searches last as long as new ones.
    """
    draws = rng.exponential(size=len(mining_hz))
    lags_s: PerClient = np.divide(
        difficulty * draws, mining_hz, out=np.full(len(mining_hz), np.inf), where=mining_hz > 0
    )
    lags_s[winner] = 0.0
    return lags_s


# Block-finding times of simulated members: planned or drawn, with a drawn winner.

_STEPPING_IN = 10.0  # times the mean mining time, after which members not scheduled to mine find a block
_IDLE_LAG_S = 1e-3  # mean lag of the others if no member is scheduled to mine


class MiningRaces:
    """Mining races of one round, one per attempt; draws depend on seed and round, as in a run without a network."""

    def __init__(self, scenario: Scenario, round: int, mining_hz: PerClient, planned_s: float) -> None:
        self._difficulty = scenario.mining.difficulty
        self._is_sampled = scenario.mining.mode is MiningMode.SAMPLED
        self._mining_hz = mining_hz
        self._planned_s = planned_s
        self._rng = stream(scenario.seed, Purpose.MINING, round)
        self._finding_s: list[list[float]] = []  # of each attempt

    def finding_s(self, attempt: int) -> list[float]:
        """Time (s) from the start of the attempt's search until each client finds a block, (clients,).

        The first is planned (`quantile`) or drawn (`sampled`), by client i with probability F_i / sum F; the lags of
        the others are drawn. If no client is scheduled to mine, all have the same chance and the first takes no time.
        """
        while len(self._finding_s) < attempt:
            self._finding_s.append(self._draw_attempt())
        return self._finding_s[attempt - 1]

    def _draw_attempt(self) -> list[float]:
        is_idle = not self._mining_hz.any()
        rate_hz = np.ones_like(self._mining_hz) if is_idle else self._mining_hz
        drawn_s, winner = draw_finding(self._rng, self._difficulty, rate_hz)
        lags_s = draw_lags(self._rng, self._difficulty, rate_hz, winner)
        if is_idle:
            return [float(lag_s) for lag_s in lags_s / self._difficulty * _IDLE_LAG_S]
        # Clients not scheduled to mine do so if no other finds a block: a round must not depend on a few.
        lags_s = np.where(np.isfinite(lags_s), lags_s, _STEPPING_IN * self._difficulty / np.sum(rate_hz))
        first_s = drawn_s if self._is_sampled else self._planned_s
        return [float(finding_s) for finding_s in first_s + lags_s]
