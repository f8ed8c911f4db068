"""Support for tests, of kjbod and of storage agents by others: disks that really fail, real processes."""
