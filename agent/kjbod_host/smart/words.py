"""Texts about the process that queries the disks, and about missing rights or tools. Pure."""

from collections.abc import Sequence
from typing import Final

RIGHTS: Final = "CAP_SYS_RAWIO and CAP_SYS_ADMIN"
"""Capabilities for ATA pass-through, and for admin commands of NVMe."""
NO_RIGHTS: Final = f"smartctl needs {RIGHTS}: systemctl enable --now kjbod-smart.socket"
NOT_INSTALLED: Final = "smartctl is not installed (smartmontools)"

NEWER_SMARTCTL: Final = "install smartmontools 7.0 or later; until then sysfs alone is read, which has little of it"


def asked_by(
    disks: Sequence[str], helper: str, *, is_there: bool, is_usable: bool, may: bool, has_smartctl: bool
) -> tuple[str, str, str]:
    """Return the line of ``kjbod guard check`` about SMART data: mark, text and remedy.

    Args:
        disks: kernel names.
        helper: path of the helper's socket.
        is_there: whether something is at that path.
        is_usable: whether this process may connect to it.
        may: whether this process has the rights that smartctl needs.
        has_smartctl: whether smartctl is installed.
    """
    text = f"SMART and NVMe health of {', '.join(disks)}"
    little = f"{text}: from sysfs alone, which has little of it"
    if not has_smartctl:
        return "note", little, NOT_INSTALLED
    if is_usable:
        return "ok", f"{text}: by the helper behind {helper}", ""
    if is_there:
        remedy = f"{helper} may not be used by who asks: SocketUser= of kjbod-smart.socket is to be the guard's user"
        return "note", little, remedy
    if not may:
        return "note", little, NO_RIGHTS
    return "ok", f"{text}: by smartctl, as long as the guard has the rights of who asks", ""


def recovery(disk: str, recovery_ms: int | None, cut_after_ms: int) -> tuple[str, str, str] | None:
    """Return a line of ``kjbod guard check`` about a disk that may retry a bad sector for longer than the guard waits.

    Args:
        disk: kernel name.
        recovery_ms: the disk's own limit (SCT ERC); 0: no limit is set; None: the disk does not tell.
        cut_after_ms: how long the guard waits.
    """
    if recovery_ms is None or 0 < recovery_ms < cut_after_ms:
        return None
    limit = f"for up to {recovery_ms / 1000:g} s" if recovery_ms else "without a limit"
    deciseconds = max(10, min(70, cut_after_ms // 200))
    return (
        "note",
        f"{disk} retries a bad sector {limit} (SCT ERC), and the guard waits {cut_after_ms / 1000:g} s: it would shut "
        "down the file system of a disk that answers later",
        f"smartctl -l scterc,{deciseconds},{deciseconds} /dev/{disk} at each boot, or a larger "
        "kjbod.guard.cut.after.ms",
    )
