"""Sources of what the kernel tells about disks by itself: each source optional, none of them deciding anything."""
