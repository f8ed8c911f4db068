"""SMART and NVMe health of the disks under the log directories, asked by a process that may hang."""
