"""Replicas and the directories that they belong into, and getting them there."""
