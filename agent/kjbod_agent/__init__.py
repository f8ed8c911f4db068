"""The agent: the storage half of a KRaft broker, on every host."""
