"""Rights that smartctl needs, and whether this process has them."""

from typing import Final

from kjbod_agent.health.sources.fserror import has_capability

RIGHTS: Final = "CAP_SYS_RAWIO and CAP_SYS_ADMIN"
"""For ATA pass-through, and for admin commands of NVMe."""
_NUMBERS: Final = (17, 21)
"""capability.h."""


def has_rights() -> bool:
    """Whether a smartctl that this process starts may ask a disk."""
    return all(map(has_capability, _NUMBERS))
