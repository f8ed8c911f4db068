"""Whether this process has the rights that smartctl needs (:data:`.words.RIGHTS`)."""

from typing import Final

from kjbod_host.health.sources.fserror import has_capability

_NUMBERS: Final = (17, 21)
"""Numbers of CAP_SYS_RAWIO and CAP_SYS_ADMIN (capability.h)."""


def has_rights() -> bool:
    """Whether a smartctl that this process starts may query a disk."""
    return all(map(has_capability, _NUMBERS))
