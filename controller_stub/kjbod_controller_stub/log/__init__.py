"""The metadata log's directory, snapshots and watch, and the raft half of a quorum of one."""
