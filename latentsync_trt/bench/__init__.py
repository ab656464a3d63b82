"""Measures speed, and the quality of results."""
