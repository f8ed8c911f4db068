"""Health of log directories: probes, kernel sources, block counters, and the verdict."""
