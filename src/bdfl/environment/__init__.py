"""Channels, energy budgets and topology of each round, drawn from (seed, purpose, round, client)."""

from bdfl.environment.draws import Purpose, draw_values, stream
from bdfl.environment.fading import draw_fading, draw_shadowing
from bdfl.environment.geometry import Attachment, attach_clients, move_clients, place_clients
from bdfl.environment.rounds import (
    DrawnRounds,
    Federation,
    RoundState,
    draw_federation,
    draw_rounds,
    draw_samples,
)
from bdfl.environment.topology import (
    TooManyLinks,
    Topology,
    algebraic_connectivity,
    find_topology,
    laplacian,
    link_nodes,
)
from bdfl.environment.trace import BadTrace, read_gain_trace

__all__ = [
    "Attachment",
    "BadTrace",
    "DrawnRounds",
    "Federation",
    "Purpose",
    "RoundState",
    "TooManyLinks",
    "Topology",
    "algebraic_connectivity",
    "attach_clients",
    "draw_fading",
    "draw_federation",
    "draw_rounds",
    "draw_samples",
    "draw_shadowing",
    "draw_values",
    "find_topology",
    "laplacian",
    "link_nodes",
    "move_clients",
    "place_clients",
    "read_gain_trace",
    "stream",
]
