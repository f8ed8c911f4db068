"""Log directories of the broker role: loaded, added and left."""
