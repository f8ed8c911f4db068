"""Any Kafka cluster, seen through its brokers and metadata: the content of each log directory, and the effect of its
failure."""
