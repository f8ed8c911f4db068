"""Errors of faults and of the disks for them."""

from kjbod.errors import KjbodError

EXIT_USAGE = 2


class FaultsError(KjbodError):
    """A fault or a disk cannot be made, found or repaired: one line with the reason and the remedy."""


class UsageError(FaultsError):
    """The command line is invalid on any machine."""

    exit_code = EXIT_USAGE
