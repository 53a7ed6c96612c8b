"""How quick the explorer is in a real browser, and what it costs the machine it runs on."""
