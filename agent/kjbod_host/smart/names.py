"""Names of disks that have health data of their own. Pure."""

import re
from typing import Final

_PHYSICAL: Final = re.compile(r"sd[a-z]{1,4}|nvme\d{1,4}n\d{1,5}")


def is_physical(name: str) -> bool:
    """Whether a kernel name is that of a whole disk of SCSI, SATA, SAS or NVMe. Loop devices, volumes, network and
    virtual disks (``loop0``, ``dm-1``, ``md0``, ``nbd0``, ``vda``, ``xvda``) have no health data, and are not asked."""
    return _PHYSICAL.fullmatch(name) is not None
