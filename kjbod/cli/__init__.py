"""The ``kjbod`` command."""
