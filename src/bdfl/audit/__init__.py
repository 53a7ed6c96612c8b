"""Questions to a stored chain: who is in a model and how much, who helped and who harmed, and what without somebody."""
