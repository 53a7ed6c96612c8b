"""Personal layers: their values between rounds, which stay with the client, and the test samples they are judged by.

[Arivazhagan19] Arivazhagan, Aggarwal, Singh, Choudhary: "Federated Learning with Personalization Layers", 2019.
[Li21] Li, Jiang, Zhang, Kamp, Dou: "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
ICLR 2021.
"""

import re
from collections.abc import Iterable
from itertools import chain
from math import inf
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bdfl.encoding import digest
from bdfl.errors import BdflError
from bdfl.learning.training import LocalResult
from bdfl.learning.weights import InvalidWeights, Layout, Vector, decode_weights, encode_weights
from bdfl.storage import OWN_FOLDER, read_regular, replace_file

PERSONAL_FOLDER = "personal"
_OWN_FILE = 0o600
_NAME = re.compile(r"(\d{6,9})-([0-9a-f]{64})\.safetensors")
_MAX_HEADER = 2**24  # bytes


class BadPersonalLayers(BdflError):
    """A file of personal layers that was damaged, or is of another model."""


class PersonalFolder:
    """Personal values of clients after each of their trainings, in files CLIENT/ROUND-DIGEST.safetensors.

    A training starts from the values of the client's latest round before. So a round that is trained again, after a
    crash or a restart, starts from the same values.
    """

    def __init__(self, path: Path, layout: Layout, *, num_kept: int = 0) -> None:
        """`num_kept` is the number of files kept for each client, the newest, at least 2; 0: all."""
        self._path = path
        self._layout = layout
        self._num_kept = num_kept

    def find(self, clients: Iterable[int], before: float = inf) -> dict[int, Vector]:
        """Values of each client after its latest training before that round; clients without one are left out."""
        listed = {client: [path for round, path in self._list(client) if round < before] for client in clients}
        return {client: self._read(paths[-1]) for client, paths in listed.items() if paths}

    def keep(self, round: int, results: Iterable[LocalResult]) -> None:
        """Write the personal values of the clients that trained in a round; a file is there whole or not at all."""
        for result in results:
            if result.personal is None:
                continue
            data = encode_weights(result.personal, self._layout)
            path = self._path / str(result.client) / f"{round:06}-{digest(data).hex()}.safetensors"
            path.parent.mkdir(OWN_FOLDER, parents=True, exist_ok=True)
            replace_file(path, data, mode=_OWN_FILE, durable=True)
            listed = self._list(result.client)
            for place, (other, former) in enumerate(reversed(listed)):
                if (other == round and former != path) or (self._num_kept and place >= self._num_kept):
                    former.unlink()

    def forget_after(self, round: int, clients: Iterable[int]) -> dict[int, int]:
        """Remove what these clients trained after that round; return the latest round that each has, 0: none."""
        listed = {client: self._list(client) for client in clients}
        for other, path in chain(*listed.values()):
            if other > round:
                path.unlink()
        return {client: max((one for one, _ in found if one <= round), default=0) for client, found in listed.items()}

    def _list(self, client: int) -> list[tuple[int, Path]]:
        """Files of a client with their rounds, in order; others are ignored."""
        folder = self._path / str(client)
        paths = list(folder.iterdir()) if folder.is_dir() else []
        return sorted((int(match[1]), path) for path in paths if (match := _NAME.fullmatch(path.name)))

    def _read(self, path: Path) -> Vector:
        try:
            data = read_regular(path, 4 * self._layout.num_parameters + _MAX_HEADER, follows=False)
            if not path.name.endswith(f"-{digest(data).hex()}.safetensors"):
                raise BadPersonalLayers(f"{path}: damaged, the bytes of its name expected{_ADVICE}")
            return decode_weights(data, self._layout)
        except (OSError, InvalidWeights) as error:
            raise BadPersonalLayers(f"{path}: {error}{_ADVICE}") from None


_ADVICE = "; without the file the client goes back to its earlier personal layers"


def deal_test(labels: NDArray[np.int64], label_counts: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Numbers of the test samples that each client judges, (samples,) for each, ascending.

    Samples of a label are divided among the clients that hold it, in proportion to how many of it they hold
    (`label_counts`, (clients, labels)); those of a label that nobody holds are left out.
    """
    dealt = [[np.zeros(0, np.int64)] for _ in label_counts]
    for label, held in enumerate(label_counts.T):
        if not held.any():
            continue
        places = np.flatnonzero(labels == label)
        ends = np.cumsum(held) * len(places) // held.sum()
        for own, part in zip(dealt, np.split(places, ends[:-1]), strict=True):
            own.append(part)
    return [np.sort(np.concatenate(own)) for own in dealt]
