"""Makes the small model that the project ships: data, training, export, evaluation. See `__main__`."""
