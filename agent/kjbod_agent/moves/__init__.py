"""Moves of replicas between the directories of one broker."""
