"""Id of the host's present boot, from ``/proc/sys/kernel/random/boot_id`` (``random(4)``). Monotonic times of two
processes are comparable while the boot id is the same."""

from pathlib import Path
from typing import Final

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """Return the id of the present boot; empty if it cannot be read."""
    try:
        return Path(BOOT_ID).read_text(encoding="ascii").strip()
    except OSError:
        return ""
