"""The KRaft metadata log: records, batches, image, segments and snapshots."""
