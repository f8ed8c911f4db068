"""Interfaces for people and their tools: the listener, the control socket, and what they show."""
