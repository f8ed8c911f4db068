"""The guard: it stands beside an unmodified Kafka broker and watches its disks."""
