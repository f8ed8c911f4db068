"""Log directories: what they may be, how they are opened, and what is remembered of them."""
