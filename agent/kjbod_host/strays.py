"""Texts with the reasons why a replica is a stray, for an agent and for a guard."""

from typing import Final

NO_TOPIC: Final = "its topic is not in the metadata"
NOT_HERE: Final = "the metadata place no replica of it on this broker"
