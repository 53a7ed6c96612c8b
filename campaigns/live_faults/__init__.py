"""Trouble for real processes: networks that are killed, frozen, starved and lied to by their clocks, and judged."""
