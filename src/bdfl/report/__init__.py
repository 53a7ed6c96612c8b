"""Tables, figures and pages made from records and results only."""
