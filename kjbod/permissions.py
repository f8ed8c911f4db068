"""Words for a file that this process may not use: whose it is, who we are, and the command that helps.

Permission that is missing at a start is a mistake of whoever set the host up, and no fault of a disk.
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
    """A file or directory that is in the way.

    Attributes:
        path: the name.
        uid: its owner.
        mode: ``st_mode``.
        parent: whether it is above what is to be used: it need only be passed through.
    """

    path: str
    uid: int
    mode: int
    parent: bool = False


def barrier(path: str | Path) -> Barrier | None:
    """The barrier that keeps this process from ``path``: the first directory above it that may not be entered, or
    itself. None where it cannot be found out. Blocks."""
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
    """Words for what is wrong, and what to do so that this process can use all below ``roots``; for after a path and a
    colon."""
    uid = os.geteuid()
    me, all_roots = user_name(uid), " ".join(roots)
    if found is None:
        return f"permission denied to {me}: check owner, mode, attributes (lsattr) and SELinux of {all_roots}"
    is_a = f"{found.path} belongs to {user_name(found.uid)} (mode {stat.S_IMODE(found.mode):04o}), and this is {me}"
    if found.parent:
        return f"permission denied: {is_a}, who may not pass: chmod o+x {found.path}"
    if found.uid == uid:
        return f"permission denied: {is_a}: chmod u+rwX {found.path}; if it is so already, see lsattr and SELinux"
    # It may well be this process that has the wrong user, and root's directories are rather given away.
    instead = f"run this as {user_name(found.uid)}, or " if found.uid else ""
    return f"permission denied: {is_a}: {instead}chown -R {me}: {all_roots}"


def advice(path: str | Path, root: str | Path) -> str:
    """:func:`explain` for a file below ``root``. Blocks."""
    return explain(barrier(path), [str(root)])


def user_name(uid: int, passwd: str = "/etc/passwd") -> str:
    """The name in ``/etc/passwd``, and nowhere else: a directory service may hang. The number where there is none."""
    try:
        with open(passwd, encoding="utf-8", errors="replace") as file:
            for line in file:
                fields = line.split(":")
                if len(fields) > 2 and fields[2] == str(uid):
                    return fields[0]
    except OSError:
        pass  # the number tells as well
    return str(uid)
