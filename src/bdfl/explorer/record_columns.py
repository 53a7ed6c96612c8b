"""Convert a record folder's Parquet tables into one file per column, which the server memory-maps."""

from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet

from bdfl.audit.lineage import NotOnChain
from bdfl.errors import other_format
from bdfl.explorer.columns import DELIVERED, IDLE, MISSED, PER_CLIENT, PER_ROUND, Values
from bdfl.explorer.documents import FLAG_INFEASIBLE
from bdfl.explorer.worker_client import RecordFacts
from bdfl.records import NOBODY
from bdfl.records.parquet import CLIENTS_FILE, FORMAT, ROUNDS_FILE
from bdfl.scheduling.problem import Status
from bdfl.storage import open_parquet

_MAX_ROWS = 2**23
DECIDED = ("cpu_hz", "mining_hz", "power_w")  # by client, as `client_cpu_hz` and so on


def split_record(folder: Path, into: Path) -> RecordFacts:
    """Write every column into `into` as `name.npy`; raise `NotOnChain` if the folder is not a record."""
    try:
        rounds, clients = open_parquet(folder / ROUNDS_FILE), open_parquet(folder / CLIENTS_FILE)
        for table in (rounds, clients):
            if table.metadata.num_rows > _MAX_ROWS:
                raise NotOnChain(f"{folder.name}: {table.metadata.num_rows} rows, at most {_MAX_ROWS} expected")
        return _split(_Table(rounds), _Table(clients), into)
    except (OSError, KeyError, TypeError, ValueError, pyarrow.ArrowException) as error:
        raise NotOnChain(f"{folder.name}: not a record that can be read, {type(error).__name__}") from None


class _Table:
    """A Parquet file, column by column."""

    def __init__(self, file: pyarrow.parquet.ParquetFile) -> None:
        self._file = file
        self.names: set[str] = set(file.schema_arrow.names)
        metadata = file.schema_arrow.metadata or {}
        self.metadata = {key.decode(): value.decode() for key, value in metadata.items()}
        found = int(self.metadata.get("format", FORMAT))
        if found != FORMAT:
            raise NotOnChain(other_format(found, FORMAT))

    def numbers(self, name: str) -> Values:
        """Return a column of numbers, NaN for null."""
        column = self._file.read(columns=[name]).column(name)
        found: Values = column.to_numpy(zero_copy_only=False)
        return found

    def numbers_or(self, name: str, num_rows: int) -> Values:
        return self.numbers(name) if name in self.names else np.full(num_rows, np.nan)

    def texts(self, name: str) -> list[str | None]:
        found: list[str | None] = self._file.read(columns=[name]).column(name).to_pylist()
        return found


def _split(rounds: _Table, clients: _Table, into: Path) -> RecordFacts:
    delay_s = rounds.numbers("delay_s")
    num_rounds = len(delay_s)
    num_clients = int(clients.numbers("client").max()) + 1 if num_rounds else 0

    def table(name: str) -> Values:
        found: Values = clients.numbers(name).reshape(num_rounds, num_clients)
        return found

    delivered, selected = table("delivered").astype(np.bool_), table("selected").astype(np.bool_)
    queue = table("next_queue")
    winner = rounds.numbers("winner").astype(np.float64)
    infeasible = np.array([text == Status.INFEASIBLE.value for text in rounds.texts("status")], dtype=np.bool_)
    columns: dict[str, Values] = {
        name: rounds.numbers(name) for name in ("time_s", "training_s", "upload_s", "mining_s", "objective")
    }
    columns |= {
        "delay_s": delay_s,
        "rest_s": rounds.numbers("overhead_s"),
        "is_measured": np.full(num_rounds, bool(np.isfinite(winner).any())),
        "accuracy": rounds.numbers_or("accuracy", num_rounds),
        "loss": rounds.numbers_or("loss", num_rounds),
        "num_updates": delivered.sum(axis=1),
        "num_selected": rounds.numbers("num_selected"),
        "proposer": np.where(np.isfinite(winner), winner, NOBODY),
        "attempt": np.ones(num_rounds),
        "is_empty": np.zeros(num_rounds),
        "flags": np.where(infeasible, FLAG_INFEASIBLE, 0),
        "digest": np.zeros(num_rounds, "S12"),
        "mean_queue": queue.mean(axis=1),
    }
    for name, kind in PER_ROUND.items():
        np.save(into / f"{name}.npy", columns[name].astype(kind))
    states = np.where(delivered, DELIVERED, np.where(selected, MISSED, IDLE))
    per_client: dict[str, Values] = {
        "client_queue": queue,
        "client_count": np.cumsum(delivered, axis=0),
        "client_state": states,
    }
    for name, kind in PER_CLIENT.items():
        found = per_client.get(name)
        if found is None:
            source = {"client_budget_j": "energy_budget_j"}.get(name, name.removeprefix("client_"))
            known = source in clients.names
            found = table(source) if known else np.full((num_rounds, num_clients), np.nan)
        np.save(into / f"{name}.npy", found.astype(kind))
    for name in DECIDED:
        np.save(into / f"client_{name}.npy", table(name).astype(np.float32))
    rates = clients.numbers("participation_rate")[:num_clients]
    samples = clients.numbers_or("samples", num_clients)[:num_clients]
    return RecordFacts(
        scenario=rounds.metadata.get("scenario", ""),
        scheduler=rounds.metadata.get("scheduler", ""),
        tradeoff=float(rounds.metadata.get("tradeoff", "nan")),
        rates=[float(rate) for rate in rates],
        samples=[int(count) for count in samples if np.isfinite(count)],
    )
