"""The fleet page and its drill-downs: from plain data to files. Nothing here knows Spark."""
