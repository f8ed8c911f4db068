"""The tables of a report, as its readers know them."""

from kjbod.fleet.schema import STREAMS

TABLES = (*STREAMS, "files", "directories", "agents", "incidents", "capacity", "timeline")
"""Folders below ``tables/``, each a table in Parquet."""
