"""A node of the federation as a pure function: `step(state, event) -> state, effects`."""
