"""A network of processes on one machine, and the verdict on its chains."""
