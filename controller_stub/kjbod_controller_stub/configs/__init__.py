"""Dynamic configuration: its keys, its valid values, and its effective values."""
