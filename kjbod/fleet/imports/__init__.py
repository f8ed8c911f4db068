"""The history of other people's drives, from the CSV files that they publish."""
