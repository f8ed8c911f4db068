"""The metadata log's directory, its snapshots, its watch, and the raft half of a quorum of one."""
