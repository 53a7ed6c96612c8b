"""The state diagram of a node, drawn from the transition table that `step` enforces."""

from bdfl.protocol.state import MOVES, Phase


def draw_diagram() -> str:
    """Mermaid text of the phases of a node and the causes of its transitions."""
    lines = ["stateDiagram-v2", f"    [*] --> {Phase.COLLECTING}: started, or started again from its store"]
    for phase, moves in MOVES.items():
        lines += [f"    {phase} --> {after}: {why.replace(':', ',')}" for after, why in moves.items()]
    lines.append(f"    {Phase.DONE} --> [*]")
    return "\n".join(lines)
