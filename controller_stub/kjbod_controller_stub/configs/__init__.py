"""Dynamic configuration: what there is, what it may be, and what counts."""
