"""The asker: a process that queries the health of one disk, and may hang in the kernel for ever.

It reads a line with the kernel name of a disk from its standard input, writes a line of JSON with what sysfs says of
that disk, and becomes ``smartctl``, which writes its document behind it. Standard input and output are one socket: the
end of the document is the end of the connection. Who asks closes it when the time is up, and waits for nobody.

Two ways to it. An agent or a guard execs it with nothing but that socket: it is a session of its own, ends with its
parent as soon as the kernel lets go of it, and asks smartctl only where the parent says that it has the rights. Or
systemd starts it for each connection (``kjbod-smart@.service``), with the rights and nothing else: then the line comes
from a user without any, and names a physical disk or nothing is done.

What reads the temperature from sysfs is a command to the disk as well (drivetemp, nvme), and so done here.
"""

# Exec'd with -I -S: the standard library alone, and of that as little as goes.

import ctypes
import json
import os
import re
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

SYS: Final = Path("/sys")
LINE_BYTES_MAX: Final = 64
ANYWHERE: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Folders searched for smartctl after PATH, because the PATH of a service often lacks them."""
SECTOR_BYTES: Final = 512
_NAME: Final = re.compile(r"[a-z][a-z0-9]{1,31}")
_OPTIONS: Final = (
    *("--json=c", "--info", "--health", "--attributes", "--log=error", "--log=ssd", "--log=scterc"),
    "--nocheck=standby",
)
"""Nothing that starts a test, sets something, or wakes a disk."""
_PR_SET_PDEATHSIG: Final = 1
_MAX_FD: Final = 1 << 16
_TEMPERATURES: Final = (
    "device/hwmon*/temp1_input",
    "device/hwmon/hwmon*/temp1_input",
    "device/nvme*/hwmon*/temp1_input",
)
"""Below ``/sys/block/X``: of an NVMe controller, of drivetemp, of a controller behind a multipath head."""


def facts_of(name: str, sys: Path = SYS) -> dict[str, str | int]:
    """Return the facts of sysfs about a disk: model, serial, firmware, wwid, capacity_bytes, temp_c. Unknown facts are
    left out."""
    disk = sys / "block" / name
    device = disk / "device"
    found: dict[str, str | int | None] = {
        "model": _text(device / "model"),
        "serial": _text(device / "serial") or _text(disk / "serial") or _unit_serial(device / "vpd_pg80"),
        "firmware": _text(device / "firmware_rev") or _text(device / "rev"),
        "wwid": _text(device / "wwid") or _text(disk / "wwid"),
        "capacity_bytes": _number(disk / "size", SECTOR_BYTES),
        "temp_c": _temperature(disk),
    }
    return {key: value for key, value in found.items() if value is not None}


def _temperature(disk: Path) -> int | None:
    for pattern in _TEMPERATURES:
        for sensor in sorted(disk.glob(pattern)):
            text = _text(sensor)
            if text is not None and re.fullmatch(r"-?[0-9]{1,6}", text):
                return round(int(text) / 1000)
    return None


def _text(path: Path) -> str | None:
    try:
        return path.read_bytes()[:256].decode("utf-8", "replace").strip() or None
    except OSError:
        return None


def _number(path: Path, factor: int) -> int | None:
    text = _text(path)
    return int(text) * factor if text is not None and re.fullmatch(r"[0-9]{1,15}", text) else None


def _unit_serial(path: Path) -> str | None:
    """Return the number in the unit serial number page of SCSI (SPC-4), after its first four bytes."""
    try:
        return path.read_bytes()[4:].decode("ascii", "replace").strip(" \0") or None
    except OSError:
        return None


def find_smartctl(folders: Iterable[str]) -> str | None:
    """Return the path of smartctl in the first of these folders that has it; None: no folder has it."""
    places = (f"{folder}/smartctl" for folder in folders if folder.startswith("/"))
    return next((place for place in places if os.access(place, os.X_OK)), None)


def main(parent: int, *, with_smartctl: bool) -> None:
    """Answer a single question.

    Args:
        parent: pid of the agent; 0: systemd's.
        with_smartctl: whether to run smartctl, in addition to reading sysfs.
    """
    os.chdir("/")
    if parent:
        _leave(parent)
    from kjbod_host.smart.names import is_physical

    name = _asked()
    is_allowed = _NAME.fullmatch(name) is not None if parent else is_physical(name)
    if not is_allowed or not (SYS / "block" / name).is_dir():
        return
    program = find_smartctl((*os.environ.get("PATH", "").split(":"), *ANYWHERE)) if with_smartctl else None
    facts = facts_of(name) | {"smartctl": program is not None}
    os.write(1, json.dumps(facts).encode() + b"\n")
    if program is not None:
        os.execv(program, ["smartctl", *_OPTIONS, f"/dev/{name}"])


def _leave(parent: int) -> None:
    """Start a session without the parent's descriptors, which ends with the parent. smartctl inherits all of that."""
    os.setsid()
    os.closerange(3, _MAX_FD)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent had ended already
        os._exit(0)


def _asked() -> str:
    line = b""
    while not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX:
        more = os.read(0, LINE_BYTES_MAX - len(line))
        if not more:
            break
        line += more
    return line.decode("ascii", "replace").rstrip("\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        # Isolated mode leaves out this file's folder; the source root goes last, so that nothing in it can stand in for
        # a module of Python's own library.
        sys.path.append(str(Path(__file__).resolve().parents[2]))
        main(int(sys.argv[1]), with_smartctl=sys.argv[2] == "smartctl")
    else:
        main(0, with_smartctl=True)
