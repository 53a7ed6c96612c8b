"""Mutated encodings of every record: decoded, judged, and never accepted as what they are not."""
