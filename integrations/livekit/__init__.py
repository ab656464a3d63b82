"""LatentSync as an avatar of LiveKit agents."""
