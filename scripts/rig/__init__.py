"""Ground of tests, demonstration and benchmarks: real processes, namespaces, real Kafka, a systemd to boot."""
