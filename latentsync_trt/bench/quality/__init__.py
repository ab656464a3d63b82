"""What it costs to take one bundle in place of another: pictures, lips, flicker, and where in the network it arises."""
