"""Which replica belongs into which directory, and getting it there."""
