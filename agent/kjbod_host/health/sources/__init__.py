"""Sources of kernel events about disks. Each source is optional, and no source decides a verdict."""
