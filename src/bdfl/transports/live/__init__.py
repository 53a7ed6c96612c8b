"""A real network: nodes as processes, on a real clock."""
