"""Brokers: registrations, sessions, and what a broker becomes with its heartbeat."""
