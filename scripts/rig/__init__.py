"""What tests, demonstration and benchmarks stand on: real processes, namespaces, real Kafka, a systemd to boot."""
