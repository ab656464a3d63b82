"""Measures of pictures and lips, and the figures and pages that show them."""
