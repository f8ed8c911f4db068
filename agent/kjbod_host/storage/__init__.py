"""The pluggable storage agent: everything that touches a log directory."""
