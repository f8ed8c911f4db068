"""Errors of the faults and of the disks that are made to break."""

from kjbod.errors import KjbodError


class FaultsError(KjbodError):
    """A fault or a disk that cannot be made, found or mended here: one line that says why and what to do about it."""
