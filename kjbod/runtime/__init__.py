"""The process: event loop, logging, service manager."""
