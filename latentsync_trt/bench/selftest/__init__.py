"""Whether a provider does the whole job on this machine: build, open, run, paint, and start again from the cache."""
