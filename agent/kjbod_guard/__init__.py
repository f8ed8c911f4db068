"""Guard: runs beside an unmodified Kafka broker and watches its disks."""
