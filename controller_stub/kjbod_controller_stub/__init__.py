"""The embedded controller: a small, durable KRaft controller."""
