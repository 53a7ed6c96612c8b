"""Assignment of Flower's nodes to the scenario's clients."""

from collections.abc import Collection, Mapping


class Roster:
    """Client numbers by node. A node keeps its number while connected; afterwards the number is free."""

    def __init__(self, num_clients: int) -> None:
        self._num_clients = num_clients
        self._told: dict[int, int | None] = {}  # number requested by a node; None: not specified
        self._client_of: dict[int, int] = {}
        self._present: frozenset[int] = frozenset()

    def find_strangers(self, present: Collection[int]) -> list[int]:
        """Return the nodes not yet queried for their number, in order."""
        return sorted(node for node in present if node not in self._told)

    def enrol(self, present: Collection[int], told: Mapping[int, int | None]) -> list[int]:
        """Assign numbers to new nodes: the requested one if free, else the lowest that is still free.

        `told` are the answers of all new nodes. Returns the nodes for which no number is left.
        """
        self._present = frozenset(present)
        self._told |= {node: told.get(node) for node in self.find_strangers(present)}
        self._client_of = {node: client for node, client in self._client_of.items() if node in self._present}
        newcomers = sorted(self._present - self._client_of.keys())
        free = set(range(self._num_clients)) - set(self._client_of.values())
        for node in newcomers:
            wanted = self._told[node]
            if wanted is not None and wanted in free:
                self._client_of[node] = wanted
                free.remove(wanted)
        waiting = [node for node in newcomers if node not in self._client_of]
        self._client_of |= dict(zip(waiting, sorted(free), strict=False))
        return waiting[len(free) :]

    def node_of(self, client: int) -> int | None:
        """Return the node of the client; None if there is none now."""
        return next((node for node, number in self._client_of.items() if number == client), None)
