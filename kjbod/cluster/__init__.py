"""Any Kafka cluster as its brokers and metadata tell of it: what lies in which log directory, and what hangs on it."""
