"""Brokers: registrations, sessions, and the effects of heartbeats."""
