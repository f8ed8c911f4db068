"""Benchmarks: one command each, a table on standard output, CSV and a plot in a directory."""
