"""What touches the process: event loop, logging, service manager."""
