"""The demonstration: what happens when a disk dies, on real disks, with a real controller, told as it happens."""
