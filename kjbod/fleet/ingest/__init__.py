"""``kjbod fleet ingest``: what agents wrote goes into the lake, each file once, by Structured Streaming."""
