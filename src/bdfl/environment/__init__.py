"""Channels, energy budgets and topology of each round, drawn from (seed, purpose, round, client)."""

from bdfl.environment.draws import BadTrace, Purpose, draw_fading, draw_shadowing, draw_values, read_gain_trace, stream
from bdfl.environment.geometry import (
    Attachment,
    TooManyLinks,
    Topology,
    algebraic_connectivity,
    attach_clients,
    find_topology,
    laplacian,
    link_nodes,
    move_clients,
    place_clients,
)
from bdfl.environment.rounds import (
    DrawnRounds,
    Federation,
    RoundState,
    draw_federation,
    draw_rounds,
    draw_samples,
)

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
