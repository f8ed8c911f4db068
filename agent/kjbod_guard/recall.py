"""Memory of the log directories that a guard has read, so that one which is started beside a disk that hangs already
knows whose it is. Pure.

A disk that hangs cannot say whose it is, so a guard that has never read it leaves it alone. One that was restarted has:
what the guard before it read there stands in a file in ``kjbod.state.dir``
(:mod:`kjbod_host.directories.known_directories`), and is taken up as if it had just been read, as far as nothing can
have changed meanwhile. That is held against the mount table, and touches no disk:

===================================================  ==================================================================
what is remembered                                   is taken
===================================================  ==================================================================
by another node, or of another boot of the host      never: nothing is remembered
of a path that leads elsewhere by now                no: a symbolic link was changed
of another mount: its ids, device, root or mount     no: another disk may be there, or the same one mounted again,
point differ, its block device was removed and       and formatted before
added again, or its file system mounted anew
of a file system that was shut down                  no: it answers nothing until it is mounted again
of another node or cluster than those that answer,   no (:func:`.binding.heads`)
or with a directory id that one of them has
of a directory that the broker has not registered,   no (:func:`.binding.outdated`): it was formatted anew, where it was
while it has one that nobody has read
else                                                 yes, while the disk does not answer. What it says when it does,
                                                     counts
===================================================  ==================================================================

A service gets a mount namespace of its own with each start, and with it other mount ids: those that count are in the
mount table of process 1, and those of this process only where that cannot be read.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from kjbod.documents import int_of, parse_document, text_of
from kjbod.errors import KjbodError
from kjbod_host.health.mounts import Mount, mount_of
from kjbod_host.storage.api import DirectoryTimeout, LoadedDirectory, MountIdentity, Survey

T = TypeVar("T")

OLD_NAME: Final = "guard-directories.json"
"""The file of releases before :mod:`kjbod_host.directories.known_directories` had this part."""
VERSION: Final = 1
YEAR_9999_MS: Final = 253_370_764_800_000
"""Later times have no date."""
NEVER_READ: Final = "no guard with this kjbod.state.dir has read it since the host was started"
ELSEWHERE: Final = "its path leads elsewhere than when it was read"
OTHER_MOUNT: Final = "another mount is there than when it was read"
SHUT_DOWN: Final = "its file system was shut down, and not mounted again since"

REPLACED: Final = "the broker has registered another directory than the one that a guard has read there"


class DamagedError(KjbodError):
    """A memory that cannot be read: somebody has changed it, or it is of a newer release."""


class Place(Struct, frozen=True):
    """The mount that a directory lies on, as mount tables and sysfs show it.

    Attributes:
        device: ``"major:minor"``.
        root: which directory of the file system is mounted.
        mount_point: where.
        fstype: ``ext4``.
        source: what was mounted, ``/dev/sdb1``.
        mount_id: in the mount table of this process.
        host_id: in that of process 1; None where that cannot be read, or does not have it.
        disk_sequence: of the block device, another one whenever it was removed and added again; None where the kernel
            tells none (before 5.15, or there is no block device).
        mount_number: of the mounted file system, another one whenever it was mounted anew: the kernel gives the ids of
            mounts that are gone to others, and the next one on the same mount point mostly gets the same. None where
            its kind has none.
    """

    device: str
    root: str
    mount_point: str
    fstype: str
    source: str
    mount_id: int
    host_id: int | None
    disk_sequence: int | None
    mount_number: int | None

    def is_same(self, now: "Place") -> bool:
        """Whether it is still there, and nothing else was in its place since."""
        by_host = self.host_id is not None and now.host_id is not None
        same_id = self.host_id == now.host_id if by_host else self.mount_id == now.mount_id
        return same_id and replace(self, mount_id=0, host_id=None) == replace(now, mount_id=0, host_id=None)


class Remembered(Struct, frozen=True):
    """A directory as it was last read.

    Attributes:
        loaded: what it said, without its replicas.
        survey: what lay around it; None where nobody knows.
        place: where it was mounted.
        at_ms: when that was, wall clock.
    """

    loaded: LoadedDirectory
    survey: Survey | None
    place: Place
    at_ms: int


class Memory(Struct, frozen=True):
    """Directories by path, of one boot of the host."""

    node: int
    boot_id: str
    directories: Mapping[str, Remembered]
    written_ms: int = 0
    """When it was written, wall clock; 0: not known."""


def place_of(
    real_path: str,
    mounts: tuple[Mount, ...],
    of_host: tuple[Mount, ...],
    disk_sequence: Callable[[str], int | None],
    mount_number: Callable[[Mount], int | None],
) -> Place | None:
    """The place that a path without symbolic links leads to; None where the mount table does not tell.

    Args:
        real_path: the path.
        mounts: the mount table of this process.
        of_host: that of process 1; empty where it cannot be read.
        disk_sequence: of a block device, by ``"major:minor"``.
        mount_number: of a mounted file system.
    """
    mount, of_first = mount_of(real_path, mounts), mount_of(real_path, of_host)
    if mount is None:
        return None
    return Place(
        device=mount.device,
        root=mount.root,
        mount_point=mount.mount_point,
        fstype=mount.fstype,
        source=mount.source,
        mount_id=mount.mount_id,
        host_id=None if of_first is None or of_first.device != mount.device else of_first.mount_id,
        disk_sequence=disk_sequence(mount.device),
        mount_number=mount_number(mount),
    )


def why_not(before: Remembered, leads_to: str, now: Place | None, *, shut_down: bool) -> str | None:
    """Reason why a directory is not taken from memory, in words; None: nothing speaks against it. See the table.

    Args:
        before: what is remembered.
        leads_to: where its path leads now, as far as that can be told without touching its disk.
        now: the place there.
        shut_down: whether its file system was shut down.
    """
    if leads_to != before.loaded.real_path:
        return ELSEWHERE
    if now is None or not before.place.is_same(now):
        return OTHER_MOUNT
    return SHUT_DOWN if shut_down else None


def taken(before: Remembered, now: Place) -> Remembered:
    """The directory as if it had been read just now, in the mount namespace of this process."""
    identity = replace(before.loaded.identity, mount_id=now.mount_id)
    return replace(before, loaded=replace(before.loaded, identity=identity), place=now)


def moment(wall_ms: int) -> str:
    """``2026-11-23T12:11:56Z``."""
    return datetime.fromtimestamp(wall_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def helpless(silence: DirectoryTimeout, since_ms: int, why: str) -> str:
    """A line for a directory that does not answer and is not taken from memory.

    Args:
        silence: of its disk.
        since_ms: since when, wall clock.
        why: see :func:`why_not`.
    """
    where = f" in {silence.wchan}" if silence.wchan else ""
    return (
        f"{silence.path}: no answer since {moment(since_ms)} at {silence.call}{where}, and {why}: nothing can be done "
        "about it until it answers; if the broker hangs there, kill it"
    )


# ------------------------------------------------------------------------------------------------------------- the file


def encode(memory: Memory) -> dict[str, Any]:
    """The part of the file, see :mod:`kjbod_host.directories.known_directories`."""
    return {
        "version": VERSION,
        "node": memory.node,
        "boot_id": memory.boot_id,
        "written_ms": memory.written_ms,
        "directories": {path: _row(one) for path, one in sorted(memory.directories.items())},
    }


def _row(one: Remembered) -> dict[str, Any]:
    loaded, place, survey = one.loaded, one.place, one.survey
    return {
        "at_ms": one.at_ms,
        "real_path": loaded.real_path,
        "meta": None if loaded.meta_properties is None else loaded.meta_properties.decode("latin-1"),
        "directory_id": loaded.directory_id,
        "has_cluster_metadata": loaded.has_cluster_metadata,
        "device": loaded.identity.device,
        "inode": loaded.identity.inode,
        "fsid": loaded.identity.fsid,
        "fs_uuid": loaded.identity.fs_uuid,
        "total_bytes": loaded.total_bytes,
        "usable_bytes": loaded.usable_bytes,
        "survey": None
        if survey is None
        else {
            "lock": None if survey.lock is None else list(survey.lock),
            "beside": None if survey.beside is None else list(survey.beside),
        },
        "place": {
            "device": place.device,
            "root": place.root,
            "mount_point": place.mount_point,
            "fstype": place.fstype,
            "source": place.source,
            "mount_id": place.mount_id,
            "host_id": place.host_id,
            "disk_sequence": place.disk_sequence,
            "mount_number": place.mount_number,
        },
    }


def decode(part: Mapping[str, Any], node: int, boot_id: str) -> Memory:
    """The memory of a guard before this one; empty where it is of another boot of the host.

    Args:
        part: of the file.
        node: id of the broker.
        boot_id: of this boot.

    Raises:
        DamagedError: it is no memory, or another node's.
    """
    try:
        if part["version"] != VERSION or part["node"] != node:
            raise DamagedError(f"it is of version {part['version']}, node {part['node']}")
        written_ms = int_of(part.get("written_ms", 0))
        if text_of(part["boot_id"]) != boot_id:
            return Memory(node, boot_id, {}, written_ms)
        directories = {path: _remembered(path, row) for path, row in part["directories"].items()}
        return Memory(node, boot_id, directories, written_ms)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DamagedError(f"it cannot be read: {error}") from error


def decode_old(content: bytes, node: int, boot_id: str) -> Memory:
    """The memory in a file of :data:`OLD_NAME`, see :func:`decode`."""
    try:
        part = parse_document(content)
    except ValueError as error:
        raise DamagedError(f"it cannot be read: {error}") from error
    return decode(part, node, boot_id)


def newest(kept: Memory | None, old: Memory | None) -> Memory | None:
    """The memory that counts, of this release's and that of an earlier one. An earlier release that ran since has read
    directories since; any other old file is one that was not removed yet.

    Args:
        kept: of the file; None: there is none.
        old: of a file of :data:`OLD_NAME`; None: there is none.
    """
    if kept is None or old is None:
        return kept or old
    read_ms = max((one.at_ms for one in old.directories.values()), default=0)
    return old if read_ms > kept.written_ms else kept


def _remembered(path: str, row: Mapping[str, Any]) -> Remembered:
    place = row["place"]
    found = Place(
        device=text_of(place["device"]),
        root=text_of(place["root"]),
        mount_point=text_of(place["mount_point"]),
        fstype=text_of(place["fstype"]),
        source=text_of(place["source"]),
        mount_id=int_of(place["mount_id"]),
        host_id=_maybe(int_of, place["host_id"]),
        disk_sequence=_maybe(int_of, place["disk_sequence"]),
        mount_number=_maybe(int_of, place["mount_number"]),
    )
    loaded = LoadedDirectory(
        path=path,
        real_path=text_of(row["real_path"]),
        meta_properties=_maybe(lambda text: text_of(text).encode("latin-1"), row["meta"]),
        directory_id=_maybe(text_of, row["directory_id"]),
        replicas=(),
        unknown_names=(),
        has_cluster_metadata=row["has_cluster_metadata"] is True,
        identity=MountIdentity(
            mount_id=found.mount_id,
            unique_mount_id=None,
            device=text_of(row["device"]),
            inode=int_of(row["inode"]),
            fsid=text_of(row["fsid"]),
            fs_uuid=_maybe(text_of, row["fs_uuid"]),
        ),
        total_bytes=int_of(row["total_bytes"]),
        usable_bytes=int_of(row["usable_bytes"]),
        clean_shutdown=False,
        clean_shutdown_epoch=None,
    )
    return Remembered(loaded, _maybe(_survey, row["survey"]), found, int_of(row["at_ms"], most=YEAR_9999_MS))


def _survey(row: Mapping[str, Any]) -> Survey:
    lock, beside = row["lock"], row["beside"]
    if lock is not None:
        major, minor, inode = map(int_of, lock)
        lock = (major, minor, inode)
    return Survey(lock, None if beside is None else tuple(map(text_of, beside)))


def _maybe(parse: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else parse(value)
