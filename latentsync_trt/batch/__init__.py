"""Many clips: job files, workers on this machine or a Ray cluster, and a store of what is done."""
