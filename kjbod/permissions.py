"""Describe missing permissions on a file: its owner, this process's user, and the command that helps.

Missing permission at a start is a mistake in the host's setup, not a fault of a disk.
"""

import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DENIED: Final = frozenset({errno.EACCES, errno.EPERM})


@dataclass(frozen=True, slots=True)
class Barrier:
    """A file or directory that this process may not use.

    Attributes:
        path: the name.
        uid: its owner.
        mode: ``st_mode``.
        parent: whether it is above the needed file, so that search permission is enough.
    """

    path: str
    uid: int
    mode: int
    parent: bool = False


def barrier(path: str | Path) -> Barrier | None:
    """Return the barrier between this process and ``path``: the first directory above it without search permission, or
    the file itself. None if unknown. Blocks."""
    own = Path(path)
    for above in reversed(own.parents):
        if not os.access(above, os.X_OK, effective_ids=True):
            return _barrier(above, parent=True)
    return _barrier(own if own.exists() else own.parent, parent=False)


def _barrier(path: Path, *, parent: bool) -> Barrier | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return Barrier(str(path), found.st_uid, found.st_mode, parent)


def explain(found: Barrier | None, roots: Iterable[str]) -> str:
    """Return the reason and the remedy that gives this process access to everything below ``roots``, as text after a
    path and a colon."""
    uid = os.geteuid()
    me, all_roots = user_name(uid), " ".join(roots)
    if found is None:
        return f"permission denied to {me}: check owner, mode, attributes (lsattr) and SELinux of {all_roots}"
    is_a = f"{found.path} belongs to {user_name(found.uid)} (mode {stat.S_IMODE(found.mode):04o}), and this is {me}"
    if found.parent:
        return f"permission denied: {is_a}, who may not pass: chmod o+x {found.path}"
    if found.uid == uid:
        return f"permission denied: {is_a}: chmod u+rwX {found.path}; if it is so already, see lsattr and SELinux"
    # This process may run as the wrong user: suggest that before changing the owner of root's directories.
    instead = f"run this as {user_name(found.uid)}, or " if found.uid else ""
    return f"permission denied: {is_a}: {instead}chown -R {me}: {all_roots}"


def advice(path: str | Path, root: str | Path) -> str:
    """Return :func:`explain` for a file below ``root``. Blocks."""
    return explain(barrier(path), [str(root)])


def user_name(uid: int, passwd: str = "/etc/passwd") -> str:
    """Return the name from ``/etc/passwd`` only, because a directory service may hang; the number if there is none."""
    try:
        with open(passwd, encoding="utf-8", errors="replace") as file:
            for line in file:
                fields = line.split(":")
                if len(fields) > 2 and fields[2] == str(uid):
                    return fields[0]
    except OSError:
        pass  # the number is returned instead
    return str(uid)
