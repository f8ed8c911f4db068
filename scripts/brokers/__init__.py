"""Real brokers on a controller, kjbod's or Apache Kafka's: see :mod:`scripts.brokers.__main__`."""
