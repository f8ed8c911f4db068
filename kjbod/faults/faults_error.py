"""Errors of the faults and of the disks that are made to break."""

from kjbod.errors import KjbodError

EXIT_USAGE = 2


class FaultsError(KjbodError):
    """A fault or a disk that cannot be made, found or mended here: one line that says why and what to do about it."""


class UsageError(FaultsError):
    """A command line that makes no sense, whatever the machine is like."""

    exit_code = EXIT_USAGE
