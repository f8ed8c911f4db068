"""Topics and partitions: placement, leaders, in-sync and eligible replicas, reassignment."""
