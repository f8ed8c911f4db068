"""Kafka's wire protocol: codec, schemas, messages, frames, and the asyncio client and server on top."""
