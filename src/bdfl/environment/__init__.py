"""Channels, energy budgets and topology of each round, drawn from (seed, purpose, round, client)."""

from bdfl.environment.draws import (
    Purpose as Purpose,
    draw_availability as draw_availability,
    draw_fading as draw_fading,
    draw_values as draw_values,
    stream as stream,
)
from bdfl.environment.rounds import (
    DrawnRounds as DrawnRounds,
    Federation as Federation,
    RoundState as RoundState,
    draw_federation as draw_federation,
    draw_rounds as draw_rounds,
    draw_samples as draw_samples,
    owed_participation as owed_participation,
)
