"""Assignment of Flower's nodes to the scenario's clients."""

from collections.abc import Collection, Mapping


class Roster:
    """Clients' numbers by node. A node keeps its number while it is there; one that is gone leaves it to others."""

    def __init__(self, num_clients: int) -> None:
        self._num_clients = num_clients
        self._told: dict[int, int | None] = {}  # the number that a node asks for; none: it does not say
        self._client_of: dict[int, int] = {}
        self._present: frozenset[int] = frozenset()

    def find_strangers(self, present: Collection[int]) -> list[int]:
        """Those who were not asked yet which number is theirs, in order."""
        return sorted(node for node in present if node not in self._told)

    def enrol(self, present: Collection[int], told: Mapping[int, int | None]) -> list[int]:
        """Gives newcomers their numbers: the one they tell where it is free, else the lowest that nobody wants.

        `told` are the answers of all strangers. Returns those for whom there is no number left.
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
        """The node that plays the client; none if there is none now."""
        return next((node for node, number in self._client_of.items() if number == client), None)
