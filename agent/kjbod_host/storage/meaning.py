"""Meaning of a kernel error: maps errno and call to medium, name, configuration, room or host. Pure.

An errno alone says little. ``EBUSY`` at a rename is a mount on one replica, or a file that NFS still has open;
``EILSEQ`` at a comparison is damage, at a ``mkdir`` it is a name that the file system does not take. So this one table
has the errno, the call (the first word of ``DirectoryError.call``), and whose call it was: the agent's work on a
replica, or a probe, whose names are kjbod's own.

===============  ===============================================  ====================================================
meaning          in work on a replica                             in a probe
===============  ===============================================  ====================================================
medium           the directory is suspect, and is probed at once  the directory is suspect, then failed
name             this replica is listed, and tried again; a full  something is in the way of kjbod's own file: no
                 probe says whether it is the whole directory     verdict, and said
configuration    no replica can be made there; at the start, 78   no verdict, and said
room             another directory may have room                  the directory is full
host             tried again                                      no verdict, and said
===============  ===============================================  ====================================================

An error that no row has is the medium's, as in Kafka, for which any IOException takes a log directory offline. Sources:
the errors that rename(2), unlink(2), rmdir(2), mkdir(2), open(2), fsync(2) and fcntl(2) list; overlayfs.rst ("Renaming
directories": EXDEV); the kernel's fs/nfs/dir.c (EBUSY of a file that was renamed while open); fscrypt.rst (ENOKEY).
"""

import errno
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

__all__ = ["TABLE", "Meaning", "Row", "asks_probe", "in_probe", "in_work", "remedy"]


class Meaning(StrEnum):
    """Subject of an error."""

    MEDIUM = "medium"
    """The disk, or the path to it."""
    NAME = "name"
    """One name in the directory: a replica, or a file in it."""
    CONFIGURATION = "configuration"
    """The file system, or how it is mounted: it cannot do what a log directory needs."""
    ROOM = "room"
    """No space, or no quota, is left."""
    HOST = "host"
    """This process or the host: it says nothing about the directory."""


NAMING: Final = ("rename", "unlink", "rmdir", "mkdir", "create", "delete", "open", "stat", "list", "access")
"""Calls that look a name up, or change one."""
_ENOTSUPP: Final = 524
"""Errno ENOTSUPP of the kernel, which some NFS servers and drivers pass on."""


class Row(NamedTuple):
    """Errors that mean the same. ``calls``: first words of the calls; empty: every call."""

    work: Meaning
    probe: Meaning
    numbers: tuple[int, ...]
    calls: tuple[str, ...] = ()


_M, _N, _C, _R, _H = Meaning.MEDIUM, Meaning.NAME, Meaning.CONFIGURATION, Meaning.ROOM, Meaning.HOST
TABLE: Final = (
    # The first row that matches counts.
    Row(_R, _R, (errno.ENOSPC, errno.EDQUOT)),
    Row(_H, _H, (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN)),
    # The lock of the start.
    Row(_C, _C, (errno.ENOLCK, errno.EOPNOTSUPP, _ENOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOTTY), ("lock",)),
    Row(_C, _C, (errno.EOPNOTSUPP, _ENOTSUPP, errno.ENOSYS), NAMING),
    # A comparison found another replica under the name (``delete_replica``).
    Row(_N, _N, (errno.ESTALE,), ("comparison",)),
    # The way is gone or closed: of one replica, or of the whole directory.
    Row(_N, _M, (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EPERM, errno.EACCES)),
    Row(_N, _M, (errno.EROFS, errno.ENXIO, errno.ENODEV, errno.ESTALE), NAMING),
    Row(_N, _M, (errno.ENOKEY, errno.EKEYEXPIRED, errno.EKEYREVOKED, errno.EKEYREJECTED), NAMING),
    # One name is in use, taken, or not to be had.
    Row(_N, _N, (errno.EBUSY, errno.EXDEV, errno.EMLINK, errno.EILSEQ, errno.EDEADLK, errno.ENOTUNIQ), NAMING),
    Row(_N, _N, (errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL), NAMING),
    Row(_N, _N, (errno.ETXTBSY, errno.EFBIG, errno.EOVERFLOW, errno.ESPIPE)),
    Row(_N, _M, (errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ENAMETOOLONG)),
    Row(_N, _H, (errno.EINVAL,)),
    Row(_H, _H, (errno.ENOSYS,)),
)


def in_work(number: int, call: str) -> Meaning:
    """Return the meaning of an error of the agent's work on a replica. ``call``: as in ``DirectoryError``."""
    row = _row(number, call)
    return Meaning.MEDIUM if row is None else row.work


def in_probe(number: int, call: str) -> Meaning:
    """Return the meaning of an error of a probe."""
    row = _row(number, call)
    return Meaning.MEDIUM if row is None else row.probe


def asks_probe(number: int, call: str) -> bool:
    """Whether an error of the work on a replica may concern the whole directory, so that a probe is needed."""
    return in_work(number, call) in (Meaning.MEDIUM, Meaning.HOST) or in_probe(number, call) is Meaning.MEDIUM


def _row(number: int, call: str) -> Row | None:
    verb = call.partition(" ")[0].partition("_")[0]
    return next((row for row in TABLE if number in row.numbers and (not row.calls or verb in row.calls)), None)


_CLOSED: Final = "something protects it: see its owner, mode and attributes (lsattr)"
_UNABLE: Final = "its file system cannot do that: put the log directory on a local file system, such as XFS or ext4"
_REMEDIES: Final[Mapping[int, str]] = {
    errno.EPERM: _CLOSED,
    errno.EACCES: _CLOSED,
    errno.EROFS: "it is mounted read-only: see findmnt",
    errno.EBUSY: "something uses it: unmount what is mounted on it (findmnt), or end what has it open (lsof)",
    errno.ETXTBSY: "something uses it as a program or as swap space (lsof, swapon)",
    errno.EXDEV: "it lies in a lower layer of an overlay file system, or has another project quota than the log "
    "directory: put the log directory on a volume of its own",
    errno.EMLINK: "the file system takes no more sub-directories there",
    errno.ESTALE: "its partition.metadata is not what it was: look what it holds, and remove it by hand",
    errno.ENOKEY: "its directory is encrypted and locked: unlock it (fscrypt unlock)",
    errno.ENOTEMPTY: "something that is no regular file is in it: move that away",
    errno.ENOLCK: "its file system has no locks: start the lock service (NFS: rpc.statd), mount it with "
    "local_lock=posix, or use a local file system",
    errno.EOPNOTSUPP: _UNABLE,
    _ENOTSUPP: _UNABLE,
    errno.ENOSYS: _UNABLE,
}


def remedy(number: int) -> str:
    """Return the remedy for an error of a name or of the configuration; empty: the error is clear enough."""
    return _REMEDIES.get(number, "")
