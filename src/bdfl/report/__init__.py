"""Tables and figures, from records and results alone."""
