"""How good and how fast: measures of results."""
