"""Long-running campaigns that test this code base, run by hand and not part of the installed package."""
