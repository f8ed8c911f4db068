"""Start-up rules for log directories, and the memory of which directory id lies under which path. Pure.

:func:`examine` gets what each directory's worker said and decides as ``KafkaRaftServer.initializeLogDirs``
and the constructor of ``LogManager`` do, in their order:

====================================================  ================================================================
what a directory is                                   what happens
====================================================  ================================================================
ids, node or cluster contradict each other            refuse
``__cluster_metadata-0`` outside the metadata dir     refuse
no such directory (a missing mount), no file in it    refuse: kjbod makes no directory that should have been mounted
                                                      (:mod:`start_up` calls it unreadable if it was one before)
used by a Kafka broker, without permission to         refuse: the agent would register as that broker
replace it (``kjbod.agent.take.over``)
a sub-directory that is no replica                    refuse, as Kafka does
two paths of one directory                            refuse
no ``directory.id`` in its file                       one is drawn and written
another one than before, on the file system below     unreadable: its disk is not mounted, and somebody has formatted
the mount point of that one                           the mount point (:mod:`start_up`)
unreadable (error, hung, garbage), the metadata one,  refuse
or every one of ``log.dirs``
unreadable, another one                               goes on without it: never registered, never reported, its
                                                      replicas are not made anew
====================================================  ================================================================

The memory is kept in a file by :mod:`.known_directories`.
"""

import errno
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from msgspec.structs import replace

from kjbod.errors import EXIT_CONFIG, StorageError
from kjbod.ids import METADATA_TOPIC_NAME, Uuid
from kjbod.meta_properties import (
    Ensemble,
    MetaProperties,
    Requirement,
    format_command,
    load_ensemble,
    trouble_with,
    verify_ensemble,
    with_directory_ids,
)
from kjbod_host.storage.api import DirectoryError, LoadedDirectory, WorkerUnavailable, errno_name

if TYPE_CHECKING:
    import random


RETIRED_MAX: Final = 100
"""Maximum number of replaced disks that are remembered: more than a host ever has."""
NO_EPOCH: Final = -1
_ABSENT: Final = frozenset({errno.ENOENT})
FORMAT: Final = format_command("server.properties", dynamic_controller=False)


class StartUpError(StorageError):
    """The log directories cannot be used as they are; the text says which and what to do."""


class OverlapError(StartUpError):
    """Two paths of the configuration lead to the same place: no restart can help."""

    exit_code = EXIT_CONFIG


class TakeOverError(StartUpError):
    """A Kafka broker has used a directory, and the agent may not replace that broker: no restart can help."""

    exit_code = EXIT_CONFIG


class Directory(Struct, frozen=True):
    """A directory that was read."""

    path: str
    directory_id: Uuid
    loaded: LoadedDirectory


class Unreadable(Struct, frozen=True):
    """A configured directory that is offline from the start."""

    path: str
    directory_id: Uuid | None
    """Remembered id; None: not known."""
    reason: str


class StartUp(Struct, frozen=True, kw_only=True):
    """The directories that the agent starts with."""

    cluster_id: str
    metadata: Directory
    """The directory of ``metadata.log.dir``; one of ``log_dirs``, or apart."""
    log_dirs: tuple[Directory, ...]
    """Log directories that were read, in the order of ``log.dirs``."""
    unreadable: tuple[Unreadable, ...]
    to_write: Mapping[str, MetaProperties]
    """By path: files that get a new ``directory.id``."""
    previous_broker_epoch: int
    """The epoch that the clean-shutdown files of *all* ``log.dirs`` agree on, else -1."""

    @property
    def all(self) -> tuple[Directory, ...]:
        """Every directory that was read, the metadata directory included, each once."""
        return self.log_dirs if self.metadata in self.log_dirs else (*self.log_dirs, self.metadata)


Load = LoadedDirectory | StorageError
"""Answer of a directory's worker."""


def examine(
    *,
    node_id: int,
    log_dirs: Sequence[str],
    metadata_log_dir: str,
    loads: Mapping[str, Load],
    remembered: Mapping[str, Uuid],
    rng: "random.Random",
    take_over: bool = False,
    command: str = FORMAT,
) -> StartUp:
    """Decide with what to start; ``loads`` has every path of ``log_dirs`` and ``metadata_log_dir``.

    Args:
        node_id: of this broker.
        log_dirs: as configured.
        metadata_log_dir: as configured.
        loads: answers of the directories' workers, by path.
        remembered: directory ids of the start before, by path.
        rng: for missing ids.
        take_over: whether the agent may use directories that a Kafka broker has used.
        command: that formats a directory.

    Returns:
        The directories to start with, and the files to write before.

    Raises:
        StorageError: one line that says which directory is wrong and what to do. Nothing was changed.
    """
    _require_workers(loads)
    ensemble = load_ensemble({p: _content(load) for p, load in loads.items()}, metadata_log_dir=metadata_log_dir)
    # In the words that each command has for it; without a directory.id one is given.
    ensemble = replace(ensemble, errors={p: _trouble(loads[p], p, command) or e for p, e in ensemble.errors.items()})
    _require_readable_metadata(ensemble, metadata_log_dir, loads)
    _require_present(ensemble, loads)
    read = {path: load for path, load in loads.items() if isinstance(load, LoadedDirectory)}
    _require_distinct(
        read, None if metadata_log_dir in log_dirs else metadata_log_dir
    )  # before its ids are compared: two paths of one directory are no copy of it
    verify_ensemble(ensemble, node_id=node_id, require=Requirement.AT_LEAST_ONE_VALID | Requirement.METADATA_LOG_DIR)
    _require_owner(ensemble, loads, command)
    usable = {path: load for path, load in read.items() if path in ensemble.properties}
    if not take_over:
        _require_no_broker(usable)
    _require_any(log_dirs, usable, ensemble, loads)
    _require_one_metadata_log(usable, metadata_log_dir)
    _require_replica_names(usable[path] for path in log_dirs if path in usable)
    to_write = with_directory_ids(ensemble, rng)
    metas = {**ensemble.properties, **to_write}
    cluster_id = metas[metadata_log_dir].cluster_id
    assert cluster_id is not None  # _require_owner
    directories = {path: Directory(path, _id_of(metas[path]), load) for path, load in usable.items()}
    return StartUp(
        cluster_id=cluster_id,
        metadata=directories[metadata_log_dir],
        log_dirs=tuple(directories[path] for path in log_dirs if path in directories),
        unreadable=tuple(
            Unreadable(path, remembered.get(path), _why(ensemble, path, loads[path]))
            for path in dict.fromkeys((*log_dirs, metadata_log_dir))
            if path not in directories
        ),
        to_write=to_write,
        previous_broker_epoch=_previous_epoch([directories.get(path) for path in log_dirs]),
    )


def _content(load: Load) -> bytes | OSError | None:
    if isinstance(load, LoadedDirectory):
        return load.meta_properties
    if isinstance(load, DirectoryError):
        if load.errno in _ABSENT:
            return None
        return OSError(load.errno, f"{errno_name(load.errno)} at {load.call}")
    return OSError(errno.EIO, str(load))


def _require_workers(loads: Mapping[str, Load]) -> None:
    for load in loads.values():
        if isinstance(load, WorkerUnavailable):
            raise load


def _require_readable_metadata(ensemble: Ensemble, metadata_log_dir: str, loads: Mapping[str, Load]) -> None:
    if metadata_log_dir in ensemble.errors:
        raise StartUpError(
            f"Encountered I/O error in metadata log directory {metadata_log_dir}. Cannot continue: "
            f"{_why(ensemble, metadata_log_dir, loads[metadata_log_dir])}"
        )


def _trouble(load: Load, path: str, command: str) -> str | None:
    return trouble_with(load.meta_properties, path, command) if isinstance(load, LoadedDirectory) else None


def _require_owner(ensemble: Ensemble, loads: Mapping[str, Load], command: str) -> None:
    """A file without these parses, as version 0; with a directory.id added it would look like one of ours
    (``KafkaRaftServer.initializeLogDirs``)."""
    for path, meta in sorted(ensemble.properties.items()):
        if meta.node_id is None or meta.cluster_id is None:
            raise StartUpError(_trouble(loads[path], path, command) or f"{path}/meta.properties is damaged")


def _require_no_broker(usable: Mapping[str, LoadedDirectory]) -> None:
    """Require that no Kafka broker has used a directory: an agent that starts while that broker is stopped would be
    unfenced in its place, and lead partitions that no client can use."""
    for path, load in sorted(usable.items()):
        if load.kafka_trace is not None:
            raise TakeOverError(
                f"{path}: an Apache Kafka broker has used this log directory ({load.kafka_trace}). An agent would "
                "register as that broker. To watch a Kafka broker use kjbod guard run; to replace Kafka on this host "
                "give --take-over or set kjbod.agent.take.over=true"
            )


def _require_present(ensemble: Ensemble, loads: Mapping[str, Load]) -> None:
    for path in sorted(ensemble.empty):
        if isinstance(loads[path], DirectoryError):
            raise StartUpError(
                f"log directory {path} does not exist: mount its disk, or take it out of log.dirs "
                "(kjbod makes no directory that should have been mounted)"
            )
        raise StartUpError(
            f"No `meta.properties` found in {path}: is its disk mounted, and "
            "have you run `kjbod format` to format the directory?"
        )


def _require_any(
    log_dirs: Sequence[str], usable: Mapping[str, LoadedDirectory], ensemble: Ensemble, loads: Mapping[str, Load]
) -> None:
    """Require at least one usable log directory, as ``LogManager`` does: a separate ``metadata.log.dir`` is not
    enough."""
    if not any(path in usable for path in log_dirs):
        reasons = "; ".join(_why(ensemble, path, loads[path]) for path in log_dirs)
        raise StartUpError(f"none of the log directories can be used: {reasons}")


def _require_one_metadata_log(usable: Mapping[str, LoadedDirectory], metadata_log_dir: str) -> None:
    for path, load in sorted(usable.items()):
        if load.has_cluster_metadata and path != metadata_log_dir:
            raise StartUpError(
                f"Found unexpected metadata location in data directory {path}: {METADATA_TOPIC_NAME}-0 belongs into "
                f"the metadata directory {metadata_log_dir}: move {path}/{METADATA_TOPIC_NAME}-0 there, or set "
                f"metadata.log.dir={path} (without it the first of log.dirs counts)"
            )


def _require_distinct(usable: Mapping[str, LoadedDirectory], metadata_alone: str | None) -> None:
    seen: dict[str, str] = {}
    for path, load in sorted(usable.items()):
        _require_apart(path, load.real_path, seen, metadata_alone)
        seen[path] = load.real_path


def _require_apart(path: str, real_path: str, others: Mapping[str, str], metadata_alone: str | None = None) -> None:
    """Require that a directory is not another one, nor inside or around it, also through symbolic links; ``others``:
    real paths by path. Only a directory for the metadata log alone may contain others.
    """
    for other, real_other in sorted(others.items()):
        if real_path == real_other:
            raise OverlapError(
                f"log directories {other} and {path} are the same directory {real_path}: name it by one path in "
                "log.dirs and metadata.log.dir"
            )
        for inner, real_inner, outer, real_outer in (
            (path, real_path, other, real_other),
            (other, real_other, path, real_path),
        ):
            if outer != metadata_alone and real_inner.startswith(f"{real_outer.rstrip('/')}/"):
                raise OverlapError(
                    f"log directory {inner} lies in log directory {outer} (at {real_inner}), which would take it for a "
                    "replica: use directories beside each other"
                )


def require_outside(name: str, real_path: str, directories: Iterable[Directory]) -> None:
    """Require that the agent's own directory (key ``name``) lies in no log directory, also by way of symbolic links.

    Raises:
        StartUpError: it does.
    """
    for directory in directories:
        if f"{real_path}/".startswith(f"{directory.loaded.real_path.rstrip('/')}/"):
            raise StartUpError(
                f"{name} lies in log directory {directory.path}, at {real_path}: use a directory outside the disks "
                "that are watched"
            )


def _require_replica_names(usable: Iterable[LoadedDirectory]) -> None:
    for load in sorted(usable, key=lambda each: each.path):
        if load.unknown_names:
            raise StartUpError(
                f"Found directory {load.path}/{load.unknown_names[0]}, whose name is not of the form topic-partition: "
                "a log directory may hold nothing else (remove it, or use a sub-directory of the mount)"
            )


def _id_of(meta: MetaProperties) -> Uuid:
    assert meta.directory_id is not None, "an id was drawn for each file that had none"
    return meta.directory_id


def _why(ensemble: Ensemble, path: str, load: Load) -> str:
    if isinstance(load, StorageError):
        return str(load)
    return ensemble.errors.get(path, "unreadable")


def _previous_epoch(directories: Sequence[Directory | None]) -> int:
    epochs = {None if d is None else d.loaded.clean_shutdown_epoch for d in directories}
    only = epochs.pop() if len(epochs) == 1 else None
    return NO_EPOCH if only is None else only


# ------------------------------------------------------------------------------------------------ a directory is added


class Addition(Struct, frozen=True):
    """A directory that may be added to a running agent."""

    directory: Directory
    to_write: MetaProperties | None
    """Its file with a new ``directory.id``, where it has none yet."""


def examine_addition(
    load: Load,
    *,
    path: str,
    metadata_log_dir: str,
    node_id: int,
    cluster_id: str,
    own: Mapping[str, Uuid],
    real_paths: Mapping[str, str],
    registered: Mapping[Uuid, int],
    rng: "random.Random",
    take_over: bool = False,
) -> Addition:
    """Apply the rules of :func:`examine` to an added directory.

    Args:
        load: what its worker said, other than that permission was denied.
        path: where it is.
        metadata_log_dir: ``metadata.log.dir``, another one.
        node_id: of this broker.
        cluster_id: of this broker.
        own: directory ids of the *other* directories of this agent, failed ones included, by path.
        real_paths: where those of them that were read really are, by path.
        registered: ids that other brokers have registered, and by whom.
        rng: for a missing id.
        take_over: whether the agent may use a directory that a Kafka broker has used.

    Raises:
        StorageError: one line that says why it cannot be added and what to do. Nothing was changed.
    """
    if isinstance(load, WorkerUnavailable):
        raise load
    ensemble = load_ensemble({path: _content(load)})
    if path in ensemble.errors:
        raise StartUpError(
            f"{path} cannot be read: {_why(ensemble, path, load)}: unmount the dead disk, mount the new one there and "
            "run `kjbod format --ignore-formatted`"
        )
    _require_present(ensemble, {path: load})
    verify_ensemble(ensemble, cluster_id=cluster_id, node_id=node_id, require=Requirement.AT_LEAST_ONE_VALID)
    _require_owner(ensemble, {path: load}, FORMAT)
    assert isinstance(load, LoadedDirectory)  # all else is an error, or empty
    if not take_over and load.kafka_trace is not None:
        raise TakeOverError(
            f"{path}: an Apache Kafka broker has used this log directory ({load.kafka_trace}). To add it, restart the "
            "agent with --take-over or kjbod.agent.take.over=true; to add a new disk, format an empty directory with "
            "kjbod format"
        )
    _require_one_metadata_log({path: load}, metadata_log_dir)
    _require_apart(path, load.real_path, real_paths)
    _require_replica_names([load])
    to_write = with_directory_ids(ensemble, rng).get(path)
    directory_id = _id_of(to_write or ensemble.properties[path])
    _require_unused(path, directory_id, own, registered)
    return Addition(Directory(path, directory_id, load), to_write)


def _require_unused(path: str, directory_id: Uuid, own: Mapping[str, Uuid], registered: Mapping[Uuid, int]) -> None:
    for other, used in sorted(own.items()):
        if used == directory_id:
            raise StartUpError(
                f"{path} has the directory.id {directory_id} of {other}: mount each disk once, at its own path, and "
                "take a copy of a disk out of log.dirs"
            )
    if directory_id in registered:
        raise StartUpError(
            f"{path} has the directory.id {directory_id}, which broker {registered[directory_id]} has registered: this "
            "disk belongs to that broker"
        )


# ---------------------------------------------------------------------------------------------------------- the memory


class KnownDirectory(Struct, frozen=True):
    """The directory that was last seen under a path."""

    directory_id: Uuid
    device: str | None = None
    """Names of the block device, where known."""
    serial: str | None = None
    seen_ms: int | None = None
    """Wall clock when the directory was last seen."""
    mount_point: str | None = None
    """Mount point of its disk; None: not known."""


class Retired(Struct, frozen=True):
    """A directory whose disk was replaced by another one."""

    directory_id: Uuid
    path: str
    """Path of the directory."""
    at_ms: int
    """Wall clock when the replacement was noticed."""
    replaced_by: Uuid


class Memory(Struct, frozen=True):
    """Memory of directories that is kept outside the disks. A value: each change gives another one."""

    directories: Mapping[str, KnownDirectory] = field(default_factory=dict)
    """By path."""
    retired: tuple[Retired, ...] = ()
    """The last :data:`RETIRED_MAX` of them, in the order in which they were replaced."""

    @property
    def ids(self) -> dict[str, Uuid]:
        """Directory ids by path."""
        return {path: known.directory_id for path, known in self.directories.items()}

    def retired_as(self, directory_id: Uuid) -> Retired | None:
        """The record of a directory's retirement; None when it was not retired."""
        return next((one for one in self.retired if one.directory_id == directory_id), None)

    def seen(self, path: str, directory_id: Uuid, at_ms: int) -> "Memory":
        """Return the memory with a directory at a path. The earlier directory of that path becomes retired, and this
        one is retired no longer."""
        before = self.directories.get(path)
        retired = tuple(one for one in self.retired if one.directory_id != directory_id)
        if before is not None and before.directory_id == directory_id:
            return Memory({**self.directories, path: replace(before, seen_ms=at_ms)}, retired)
        directories = {**self.directories, path: KnownDirectory(directory_id, seen_ms=at_ms)}
        if before is not None and before.directory_id not in {known.directory_id for known in directories.values()}:
            retired = (*retired, Retired(before.directory_id, path, at_ms, directory_id))[-RETIRED_MAX:]
        return Memory(directories, retired)

    def on_device(self, path: str, device: str | None, serial: str | None, mount_point: str | None) -> "Memory":
        """The memory with the device under a path's directory."""
        known = replace(self.directories[path], device=device, serial=serial, mount_point=mount_point)
        return Memory({**self.directories, path: known}, self.retired)

    def mounted_before(self, path: str, directory_id: str | None) -> str | None:
        """Mount point of the disk that had another directory under this path; None where it is not known, or where the
        directory is the same: somebody has copied it, wherever to."""
        known = self.directories.get(path)
        return None if known is None or str(known.directory_id) == directory_id else known.mount_point

    def only(self, paths: Collection[str]) -> "Memory":
        """Return the memory of these paths only."""
        return Memory({path: known for path, known in self.directories.items() if path in paths}, self.retired)
