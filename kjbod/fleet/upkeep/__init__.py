"""Upkeep of a lake: compacting, retention, verification, queries, publishing to Iceberg."""
