"""The controller's own directory: identity, lock, and the files that formatting created for the first start. Blocking
code.

Nothing here writes but the lock file, and :func:`identified` where a directory has no id yet.
"""

import contextlib
import errno
import fcntl
import os
import random
from datetime import datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from kjbod.config.keys import Config
from kjbod.errors import ConfigError, KjbodError, StorageError
from kjbod.files import read_file, reason_of, write_atomically
from kjbod.ids import ZERO, Uuid, is_reserved, random_directory_id
from kjbod.medium import read_anew
from kjbod.meta_properties import (
    META_PROPERTIES_NAME,
    format_command,
    parse_meta_properties,
    render_meta_properties,
    trouble_with,
)
from kjbod.metadata.checkpoint_files import checkpoints_in, read_checkpoint
from kjbod.metadata.control_records import KRaftVoters
from kjbod.metadata.log_files import DIRECTORY_NAME
from kjbod.metadata.quorum_state import BYTES_MAX as QUORUM_STATE_BYTES_MAX
from kjbod.metadata.quorum_state import FILE_NAME as QUORUM_STATE
from kjbod.metadata.quorum_state import QuorumState, read_quorum_state
from kjbod.metadata.records import FeatureLevelRecord, Record
from kjbod.metadata.snapshot import BOOTSTRAP_CHECKPOINT, SnapshotId
from kjbod.metadata.versions import LATEST, default_features
from kjbod.permissions import DENIED, advice
from kjbod.runtime.locks import holder_of
from kjbod.runtime.logging import get_logger

_log = get_logger()

LOCK_NAME = ".lock"
_META_BYTES_MAX = 1024 * 1024
_FIRST = SnapshotId(0, 0)


class ControllerDirectory(Struct, frozen=True, kw_only=True):
    """A formatted and locked metadata log directory."""

    path: Path
    cluster_id: str
    directory_id: Uuid
    """``ZERO``: it was formatted before Kafka 3.7, and :func:`identified` gives it one."""
    lock_fd: int
    descriptor: int
    """Of the directory: by its path another one may be found later."""
    identity: tuple[int, int]
    """Device and inode."""

    @property
    def log_path(self) -> Path:
        """Directory of the metadata log."""
        return self.path / DIRECTORY_NAME

    def release(self) -> None:
        """Release the lock and remove its file, as Kafka does at a clean stop."""
        with contextlib.suppress(OSError):
            os.unlink(LOCK_NAME, dir_fd=self.descriptor)
        os.close(self.descriptor)
        os.close(self.lock_fd)


def open_directory(config: Config) -> ControllerDirectory:
    """Check and lock ``metadata.log.dir``.

    Raises:
        ConfigError: it is not ours to use.
        StorageError: not formatted, another node's or cluster's, unreadable, or in use.
    """
    path = Path(config.metadata_log_dir)
    file = path / META_PROPERTIES_NAME
    try:
        content = read_file(file, bytes_max=_META_BYTES_MAX)
    except FileNotFoundError:
        flag = "" if config.controller_quorum_voters else " --standalone"
        raise StorageError(
            f"{path} is not formatted: there is no {META_PROPERTIES_NAME}; is its disk mounted? For a new cluster run "
            f"`kjbod format -c {config.source} -t CLUSTER_ID{flag}`"
        ) from None
    except OSError as error:
        if error.errno in DENIED:
            raise ConfigError(f"{path}: {advice(file, path)}") from None
        raise StorageError(f"cannot read {file}: {error.strerror}") from None
    command = format_command(config.source, dynamic_controller=config.is_dynamic_controller)
    if trouble := trouble_with(content, str(path), command, needs_id=False):
        raise StorageError(trouble)
    meta = parse_meta_properties(content, str(file))
    if meta.node_id != config.node_id:
        raise StorageError(
            f"{file} belongs to node {meta.node_id}, the configuration says node.id={config.node_id}: "
            "correct one of the two"
        )
    if meta.directory_id is not None and is_reserved(meta.directory_id):
        raise StorageError(
            f"{file} has the reserved directory.id {meta.directory_id}, which no directory can have: restore the file"
        )
    assert meta.cluster_id is not None  # there is no trouble
    lock_fd = _lock(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    return ControllerDirectory(
        path=path,
        cluster_id=meta.cluster_id,
        directory_id=meta.directory_id or ZERO,
        lock_fd=lock_fd,
        descriptor=descriptor,
        identity=(found.st_dev, found.st_ino),
    )


def identified(directory: ControllerDirectory, rng: random.Random, moment: datetime) -> ControllerDirectory:
    """Give a directory that was formatted before Kafka 3.7 an id, as Kafka does at a start
    (``KafkaRaftServer.initializeLogDirs``). In a combined node the agent has already done this.

    Args:
        directory: that is locked.
        rng: for the id.
        moment: for the line of the file that says when it was written; with a time zone.

    Raises:
        StorageError: the file cannot be read or written.
    """
    if directory.directory_id != ZERO:
        return directory
    file = directory.path / META_PROPERTIES_NAME
    try:
        meta = parse_meta_properties(read_file(file, bytes_max=_META_BYTES_MAX), str(file))
        if meta.directory_id is None:
            meta = replace(meta, directory_id=random_directory_id(rng))
            write_atomically(file, render_meta_properties(meta, moment), mode=0o666)
            _log.info("directory.identified", path=str(directory.path), directory_id=str(meta.directory_id))
    except OSError as error:
        raise StorageError(f"cannot give {directory.path} a directory.id in {file}: {reason_of(error)}") from None
    assert meta.directory_id is not None
    return replace(directory, directory_id=meta.directory_id)


def _lock(directory: Path) -> int:
    """Lock the directory as Kafka does: a POSIX lock on ``.lock``, which a Java process sees too."""
    while True:
        fd = _lock_once(directory, directory / LOCK_NAME)
        if os.fstat(fd).st_nlink:
            return fd
        os.close(fd)  # the previous holder stopped and removed the file: another process would lock a new file


def _lock_once(directory: Path, path: Path) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno in DENIED:
            raise ConfigError(f"{directory}: {advice(path, directory)}") from None
        raise StorageError(f"cannot open {path}: {error.strerror}") from None
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno not in (errno.EAGAIN, errno.EACCES):  # fcntl(2): these say that it is held
            raise ConfigError(
                f"{directory} cannot be locked: {error.strerror} at {path}: its file system has no locks: mount it so "
                "that they work (NFS: rpc.statd, or local_lock=posix), or use a local file system"
            ) from None
        pid = holder_of(path)
        who = "another process" if pid is None else f"process {pid}"
        raise StorageError(f"{directory} is in use: {who} holds {path}; stop that controller or broker first") from None
    return fd


class Remains(Struct, frozen=True, kw_only=True):
    """Contents of the directory besides the log."""

    quorum_state: QuorumState | None
    bootstrap: tuple[Record, ...]
    """FeatureLevelRecords and the like for an empty log."""
    voters: KRaftVoters | None
    """Of the 0-0 checkpoint."""
    empty: bool
    """Whether the log has no records."""
    missing: bool
    """Whether there is no log, and not even the other files of formatting for a dynamic quorum."""


def read_remains(directory: ControllerDirectory) -> Remains:
    """Read quorum state, bootstrap records and first voters.

    Raises:
        StorageError: a file cannot be read or is corrupt.
        KjbodError: the quorum is not this node alone.
    """
    voters = state = None
    bootstrap = _default_bootstrap()
    in_snapshot: tuple[Record, ...] = ()
    empty = missing = True
    checkpoint = directory.path / BOOTSTRAP_CHECKPOINT
    try:
        if directory.log_path.is_dir():
            empty = not any(path.stat().st_size for path in directory.log_path.glob("*.log"))
            if (quorum_state := directory.log_path / QUORUM_STATE).exists():
                # An epoch that is not on the disk might be used a second time.
                read_anew(quorum_state, bytes_max=QUORUM_STATE_BYTES_MAX)
            state = read_quorum_state(directory.log_path)
            snapshots = checkpoints_in(directory.log_path)
            first = snapshots.get(_FIRST)
            if first is not None:
                content = read_checkpoint(first)
                voters, in_snapshot = content.voters, content.records
            missing = not any(directory.log_path.iterdir())
            if checkpoint.exists():  # what formatting below level 4.4 leaves, where it leaves a snapshot beside it
                missing = not snapshots and not any(directory.log_path.glob("*.log"))
        if in_snapshot:
            bootstrap = in_snapshot
        elif checkpoint.exists():
            bootstrap = read_checkpoint(checkpoint).records
    except OSError as error:
        raise StorageError(f"cannot read {directory.path}: {reason_of(error)}") from None
    return Remains(quorum_state=state, bootstrap=bootstrap, voters=voters, empty=empty, missing=missing)


def _default_bootstrap() -> tuple[Record, ...]:
    return tuple(FeatureLevelRecord(name=name, feature_level=level) for name, level in default_features(LATEST).items())


def require_formatted(remains: Remains, config: Config, directory: ControllerDirectory) -> None:
    """Require a formatted directory: a missing log does not mean a new cluster. With ``controller.quorum.voters``
    formatting leaves no file that would distinguish the two cases.

    Raises:
        StorageError: it is missing.
    """
    if remains.missing and not config.controller_quorum_voters:
        raise StorageError(
            f"{directory.log_path} has neither a metadata log nor {_FIRST.file_name}, which `kjbod format "
            "--standalone` leaves there: mount or restore it; nothing was changed"
        )


def require_alone(voters: KRaftVoters | None, node_id: int, where: Path) -> None:
    """Require that this node is the only voter of the quorum.

    Raises:
        KjbodError: it has other voters.
    """
    others = [] if voters is None else [voter.voter_id for voter in voters.voters if voter.voter_id != node_id]
    if others:
        raise KjbodError(
            f"{where} belongs to a quorum with voters {sorted({*others, node_id})}: kjbod controller is a quorum of "
            "one; run Apache Kafka's own controllers there, agents work with them"
        )
