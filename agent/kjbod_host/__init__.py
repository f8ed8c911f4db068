"""The host: log directories, their health, storage workers and files, for both roles."""
