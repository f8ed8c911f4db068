"""Capabilities of the helper: those that each verb needs, errors without them, and the capabilities that are dropped.

=================  ================================================================================================
CAP_SYS_ADMIN      cut, mask, unmask; the broker's namespaces
CAP_SYS_CHROOT     mask and unmask in another mount namespace
CAP_KILL           kill, where the broker is another user's
CAP_NET_ADMIN      reset, unreset, destroy
CAP_SYS_PTRACE     threads, hold; with CAP_DAC_READ_SEARCH for files of the broker, and freeze
CAP_IPC_LOCK       locked pages
CAP_SYS_RESOURCE   at the start alone: not the first that the OOM killer takes
=================  ================================================================================================
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from kjbod_guard.helper_kernel import libc
from kjbod_guard.helper_netlink import Refused

TYPE_CHECKING = False  # importing typing costs memory
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

RIGHTS = {
    "threads": "CAP_SYS_PTRACE",
    "cut": "CAP_SYS_ADMIN",
    "mask": "CAP_SYS_ADMIN",
    "unmask": "CAP_SYS_ADMIN",
    "kill": "CAP_KILL",
    "reset": "CAP_NET_ADMIN",
    "unreset": "CAP_NET_ADMIN",
    "destroy": "CAP_NET_ADMIN",
    "hold": "CAP_SYS_PTRACE",
    "let_go": "CAP_DAC_READ_SEARCH",
    "freeze": "CAP_DAC_READ_SEARCH",
}
KEPT_CAPABILITIES = (2, 5, 12, 14, 18, 19, 21)
"""CAP_DAC_READ_SEARCH, _KILL, _NET_ADMIN, _IPC_LOCK, _SYS_CHROOT, _SYS_PTRACE, _SYS_ADMIN."""
NEEDED = {
    21: "CAP_SYS_ADMIN is missing: no file system is shut down or over-mounted",
    19: "CAP_SYS_PTRACE is missing: nobody sees whether the broker is stuck",
    12: "CAP_NET_ADMIN is missing: clients of a killed broker wait for their time-outs",
}
"""Lines about needed capabilities that are missing, by number."""
OOM_SCORE_ADJUST = -900
_OOM_FILE = "/proc/self/oom_score_adj"
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_MCL_CURRENT, _MCL_FUTURE = 1, 2


def told(error: OSError | Refused, verb: str) -> str:
    """Return in words why a verb failed."""
    if isinstance(error, OSError):
        text = error.strerror or str(error)
        return f"{text}: it takes {RIGHTS[verb]}" if error.errno in (errno.EPERM, errno.EACCES) else text
    return str(error)


def carried_out(work: Callable[[], Any], verb: str) -> dict[str, Any]:
    """Carry out a request and return the answer; never raises."""
    try:
        found = work()
    except Refused as refusal:
        return {"outcome": "refused", "reason": str(refusal)}
    except OSError as error:
        denied = error.errno in (errno.EPERM, errno.EACCES)
        return {"outcome": "refused" if denied else "failed", "reason": told(error, verb)}
    except Exception as error:  # noqa: BLE001 - a bug is an answer too
        return {"outcome": "failed", "reason": repr(error)}
    answer: dict[str, Any] = {"outcome": "done", "reason": ""}
    return answer | ({"threads": found} if verb == "threads" else {})


def secure() -> list[str]:
    """Lock the pages, and protect the process from the OOM killer; return lines about failures."""
    missing = []
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE):
        missing.append(f"pages are not locked: {os.strerror(ctypes.get_errno())} (CAP_IPC_LOCK)")
    try:
        with open(_OOM_FILE, encoding="ascii") as file:
            protected = int(file.read()) <= OOM_SCORE_ADJUST  # by OOMScoreAdjust= of the unit
        if not protected:
            with open(_OOM_FILE, "w", encoding="ascii") as file:
                file.write(str(OOM_SCORE_ADJUST))
    except OSError as error:
        missing.append(f"not protected from the OOM killer: {error.strerror} (CAP_SYS_RESOURCE)")
    return missing


def give_up_rights() -> list[str]:
    """Drop all capabilities that no verb needs, irreversibly; return a line for each needed capability that is
    missing."""
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    header = struct.pack("=Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    now = ctypes.create_string_buffer(24)
    if libc.capget(header, now) == 0:
        low, permitted, inheritable, *_ = struct.unpack("=6I", now.raw)
        kept = sum(1 << one for one in KEPT_CAPABILITIES)
        libc.capset(header, struct.pack("=6I", low & kept, permitted & kept, inheritable & 0, 0, 0, 0))
        return [line for number, line in NEEDED.items() if not permitted & (1 << number)]
    return []
