"""Log directories: start-up rules, opening, and the memory of known directories."""
