"""Pluggable storage agent: all code that touches a log directory."""
