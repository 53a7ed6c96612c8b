"""How fast rounds of learning are, beside a plain PyTorch loop, Flower and pfl-research on the same batches."""
