"""Damaged or malicious folders, opened by the real commands."""
