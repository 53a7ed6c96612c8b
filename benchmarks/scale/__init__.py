"""How far a federation can grow on one machine: time and memory of a round."""
