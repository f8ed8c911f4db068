"""The boot of the host that this is, from ``/proc/sys/kernel/random/boot_id`` (``random(4)``): monotonic time goes on
from one process to the next for as long as it is the same."""

from pathlib import Path
from typing import Final

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """The id of this boot; empty where it cannot be read."""
    try:
        return Path(BOOT_ID).read_text(encoding="ascii").strip()
    except OSError:
        return ""
