"""Learning in the federation: data, partitions, models, training and privacy."""
