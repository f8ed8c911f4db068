"""Frames that hurt, sent to a controller: ``scripts/fuzz``."""
