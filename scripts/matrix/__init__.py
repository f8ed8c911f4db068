"""The matrix of compatibility: kjbod beside each release of Apache Kafka, as ``scripts/compatibility`` measures it."""
