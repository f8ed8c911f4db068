"""Interfaces for people and tools: the listener, the control socket, and their answers."""
