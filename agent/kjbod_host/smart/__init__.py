"""SMART and NVMe health of the disks under the log directories, read by a separate process that may hang."""
