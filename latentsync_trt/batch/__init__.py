"""Many clips: job files, workers on this machine or a Ray cluster, and a ledger of what is done."""
