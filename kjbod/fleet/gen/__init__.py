"""``kjbod fleet gen``: the reports of a fleet that does not exist, and the truth about it."""
