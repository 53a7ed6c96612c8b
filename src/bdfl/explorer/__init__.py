"""Web pages over chains and records, live and in replay; every page has a JSON twin."""
