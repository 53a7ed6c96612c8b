"""Folders that somebody else damaged or made to do harm, opened by the real commands."""
