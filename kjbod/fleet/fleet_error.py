"""The error of the fleet report, apart so that finding Java needs no Spark."""

from kjbod.errors import KjbodError


class FleetError(KjbodError):
    """The report cannot be made: no Java, no reports, no place to write. One line that says which."""

    exit_code = 2


class ClaimedError(FleetError):
    """Another process does this to the lake just now."""
