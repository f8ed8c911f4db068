"""Is a log directory alive? Probes, kernel sources, block counters, and the verdict on them."""
