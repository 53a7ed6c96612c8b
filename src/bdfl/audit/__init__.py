"""Analyses of a stored chain: model lineage, the influence of each client, privacy, summaries and exports."""
