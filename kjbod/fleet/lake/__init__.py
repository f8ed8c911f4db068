"""A lake: Parquet tables, and one state that says which of their directories count."""
