"""Log directories: what they may be, how they are opened, loaded, added and left."""
