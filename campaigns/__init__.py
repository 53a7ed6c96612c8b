"""Campaigns that judge our own code: long, run by hand, and no part of the installed package."""
