"""Web pages about chains and records, live and in replay; every page has a JSON document."""
