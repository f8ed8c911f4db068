"""Agent in the role of a broker: the storage half of a KRaft broker."""
