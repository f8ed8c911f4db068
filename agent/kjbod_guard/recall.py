"""Memory of the log directories that a guard has read, for a guard that starts while a disk already hangs. Pure.

A disk that hangs cannot show its owner, so a guard that has never read it does nothing to it. The earlier guard stored
what it read in a file in ``kjbod.state.dir`` (:mod:`kjbod_host.directories.known_directories`). The new guard uses the
stored directory as if it had just read it, unless something may have changed since. It checks that with the mount
table, and touches no disk:

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

A service gets a new mount namespace with each start, and with it other mount ids. So the mount ids of process 1 count,
and those of this process only if the table of process 1 cannot be read.
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
"""File of older releases, before :mod:`kjbod_host.directories.known_directories` had this part."""
VERSION: Final = 1
YEAR_9999_MS: Final = 253_370_764_800_000
"""Maximum time: later times cannot be converted to a date."""
NEVER_READ: Final = "no guard with this kjbod.state.dir has read it since the host was started"
ELSEWHERE: Final = "its path leads elsewhere than when it was read"
OTHER_MOUNT: Final = "another mount is there than when it was read"
SHUT_DOWN: Final = "its file system was shut down, and not mounted again since"

REPLACED: Final = "the broker has registered another directory than the one that a guard has read there"


class DamagedError(KjbodError):
    """A memory that cannot be read: it was changed by hand, or is of a newer release."""


class Place(Struct, frozen=True):
    """The mount that a directory lies on, as mount tables and sysfs show it.

    Attributes:
        device: ``"major:minor"``.
        root: directory of the file system that is mounted.
        mount_point: path where it is mounted.
        fstype: ``ext4``.
        source: device that was mounted, as ``/dev/sdb1``.
        mount_id: in the mount table of this process.
        host_id: mount id in the mount table of process 1; None: that table cannot be read, or does not have the mount.
        disk_sequence: sequence number of the block device, a new one after it was removed and added again; None: the
            kernel has none (before 5.15, or no block device).
        mount_number: number of the mounted file system, a new one after each mount. Mount ids alone do not show a new
            mount: the kernel reuses them, mostly for the next mount on the same mount point. None: this type of file
            system has none.
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
        """Whether ``now`` is the same mount, with no other mount in between."""
        by_host = self.host_id is not None and now.host_id is not None
        same_id = self.host_id == now.host_id if by_host else self.mount_id == now.mount_id
        return same_id and replace(self, mount_id=0, host_id=None) == replace(now, mount_id=0, host_id=None)


class Remembered(Struct, frozen=True):
    """A directory as last read.

    Attributes:
        loaded: content of the directory, without its replicas.
        survey: names around it on its file system; None: not known.
        place: mount of the directory.
        at_ms: wall clock of the read.
    """

    loaded: LoadedDirectory
    survey: Survey | None
    place: Place
    at_ms: int


class Memory(Struct, frozen=True):
    """Remembered directories by path, of one boot of the host."""

    node: int
    boot_id: str
    directories: Mapping[str, Remembered]
    written_ms: int = 0
    """Wall clock of the write; 0: not known."""


def place_of(
    real_path: str,
    mounts: tuple[Mount, ...],
    of_host: tuple[Mount, ...],
    disk_sequence: Callable[[str], int | None],
    mount_number: Callable[[Mount], int | None],
) -> Place | None:
    """Return the mount that a path without symbolic links leads to; None: the mount table does not show one.

    Args:
        real_path: the path.
        mounts: the mount table of this process.
        of_host: the mount table of process 1; empty: it cannot be read.
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
    """Return why the memory of a directory is not used, in words; None: it may be used. See the table.

    Args:
        before: the remembered directory.
        leads_to: present target of its path, found without touching its disk.
        now: present mount there.
        shut_down: whether its file system was shut down.
    """
    if leads_to != before.loaded.real_path:
        return ELSEWHERE
    if now is None or not before.place.is_same(now):
        return OTHER_MOUNT
    return SHUT_DOWN if shut_down else None


def taken(before: Remembered, now: Place) -> Remembered:
    """Return the remembered directory as if just read, in the mount namespace of this process."""
    identity = replace(before.loaded.identity, mount_id=now.mount_id)
    return replace(before, loaded=replace(before.loaded, identity=identity), place=now)


def moment(wall_ms: int) -> str:
    """Return a time as text: ``2026-11-23T12:11:56Z``."""
    return datetime.fromtimestamp(wall_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def helpless(silence: DirectoryTimeout, since_ms: int, why: str) -> str:
    """Return a line about a directory that does not answer and is not used from memory.

    Args:
        silence: timeout of the read.
        since_ms: wall clock of the first timeout.
        why: see :func:`why_not`.
    """
    where = f" in {silence.wchan}" if silence.wchan else ""
    return (
        f"{silence.path}: no answer since {moment(since_ms)} at {silence.call}{where}, and {why}: nothing can be done "
        "about it until it answers; if the broker hangs there, kill it"
    )


# ------------------------------------------------------------------------------------------------------------- the file


def encode(memory: Memory) -> dict[str, Any]:
    """Return the guard's part of the file, see :mod:`kjbod_host.directories.known_directories`."""
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
    """Return the memory of the previous guard; empty if it is of another boot of the host.

    Args:
        part: of the file.
        node: id of the broker.
        boot_id: of this boot.

    Raises:
        DamagedError: the part is no memory, or is of another node.
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
    """Return the memory in a file of :data:`OLD_NAME`, see :func:`decode`."""
    try:
        part = parse_document(content)
    except ValueError as error:
        raise DamagedError(f"it cannot be read: {error}") from error
    return decode(part, node, boot_id)


def newest(kept: Memory | None, old: Memory | None) -> Memory | None:
    """Return the newer memory, of this release or of an earlier one. If an earlier release ran last, its file has newer
    reads. Otherwise its file was only not removed yet.

    Args:
        kept: memory of this release; None: there is none.
        old: memory in a file of :data:`OLD_NAME`; None: there is none.
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
