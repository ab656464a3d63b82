"""Live sessions: speech in while it is still being made, pictures and their sound out."""
