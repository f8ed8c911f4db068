"""The commands of ``kjbod fleet``."""
