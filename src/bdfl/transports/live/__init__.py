"""The live transport: nodes as processes, on a real clock and network."""
