"""The fleet report: what agents write, and what Spark makes of it."""
