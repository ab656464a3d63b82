"""Eight-bit bundles: calibrated on clips, measured against the bundle they come from."""
