"""Interface of a storage agent, the plug-in through which kjbod touches log directories.

The daemon itself never touches a watched disk, not even with ``stat``: a thread that is stuck in the kernel keeps the
port and the locks of a killed process. So everything that reaches a disk is a method of :class:`DirectoryAgent`, and
every implementation keeps these promises (``kjbod_host.storage.conformance`` tests them):

*Every call may hang for ever.* Each takes ``timeout_ms``. When it has passed, the call raises
:class:`DirectoryTimeout`, at that moment and not later, whatever the disk does.

*A timeout or a cancellation stops the waiting, not the work.* The kernel goes on with it and the effect may still
happen, minutes later. The answer that then arrives is given to ``on_late_answer`` and to nobody else: it is the sign
that the directory moves again.

*One request at a time per directory.* Calls queue in the order of their start, except that a probe goes before all
others. The time in the queue counts towards ``timeout_ms``; :class:`DirectoryTimeout` then describes the request that
is in the way. No directory ever waits for another one. Of pieces of a copy (:meth:`DirectoryAgent.read_piece`,
:meth:`DirectoryAgent.write_piece`, :meth:`DirectoryAgent.checksum`) an implementation may have one more handed over, so
that its worker does not wait for the daemon between two of them: it is the next one, also for a probe.

*Long work is cut up.* No single request occupies a directory for longer than its disk needs for some hundred small
files, so a probe is never behind a long scan.

*Errors are errno, call and path.* :class:`DirectoryError` says what the kernel answered, to which step, for which
directory. What it means for the directory is not decided here but by ``kjbod_host.health.verdict``.

*Trouble of the implementation is not trouble of the disk.* A worker process that was killed, or that could not be
started, raises :class:`WorkerUnavailable`; the next call gets a fresh one.

*What was acknowledged is durable.* A method that changes something has fsynced files and directories before it
returns, and has replaced files by tmp, fsync, rename, fsync of the directory.

*Nothing missing is made.* A log directory or mount that is not there is ``ENOENT`` or ``ESTALE``, never created.
"""

import errno as errno_module
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from msgspec import Struct

from kjbod.errors import StorageError
from kjbod.ids import Uuid

if TYPE_CHECKING:
    from kjbod.clock import Clock
    from kjbod.permissions import Barrier


ReplicaSuffix = Literal["", "future", "delete", "stray"]
"""Suffix of a replica directory's name (Kafka's ``UnifiedLog``); empty for the current log."""


def errno_name(number: int) -> str:
    """Return the name of an errno, ``"EIO"`` for 5; the number as text if this platform has no name."""
    return errno_module.errorcode.get(number, str(number))


class DirectoryError(StorageError):
    """An error of the kernel, or a failed comparison with the expected content.

    Two numbers come from comparisons: ``ESTALE``: this is not the mount, directory or directory id that was loaded;
    ``EILSEQ``: what was read is not what was written.

    Attributes:
        errno: the number.
        call: the step that failed, in words that fit after "at": ``"fsync of .kjbod_probe"``.
        path: the log directory as configured.
        after_us: time from the start of the request until the error, in microseconds.
        barrier: of EACCES and EPERM: what is in the way, where that is known.
    """

    def __init__(
        self, errno: int, call: str, path: str, *, after_us: int = 0, barrier: "Barrier | None" = None
    ) -> None:
        super().__init__(f"{path}: {errno_name(errno)} at {call}")
        self.errno = errno
        self.call = call
        self.path = path
        self.after_us = after_us
        self.barrier = barrier


class DirectoryTimeout(StorageError):  # noqa: N818  the name says it
    """No answer in time. The request is abandoned, not ended; see ``on_late_answer``.

    Attributes:
        age_ms: age of the request that occupies the directory, which may be an earlier one than the caller's.
        wchan: kernel function in which its worker sleeps (``/proc/PID/wchan``), empty when unknown.
        call: the step it is in.
        path: the log directory as configured.
    """

    def __init__(self, age_ms: int, wchan: str, call: str, path: str) -> None:
        where = f" in {wchan}" if wchan else ""
        super().__init__(f"{path}: no answer for {age_ms} ms at {call}{where}")
        self.age_ms = age_ms
        self.wchan = wchan
        self.call = call
        self.path = path


class WorkerUnavailable(StorageError):  # noqa: N818  the name says it
    """The process that works on this directory is gone, cannot be started or does not take requests.

    Says nothing about the disk.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class MountIdentity(Struct, frozen=True):
    """The file system and directory that a path leads to. Two are the same place exactly when they are equal.

    Attributes:
        mount_id: the id in the first column of ``/proc/self/mountinfo``; the kernel uses it again after an unmount.
        unique_mount_id: ``STATX_MNT_ID_UNIQUE`` (Linux 6.8), never used twice; None where the kernel has none.
        device: ``st_dev`` as ``"major:minor"``.
        inode: ``st_ino`` of the log directory.
        fsid: ``f_fsid`` of statvfs, hexadecimal. On XFS just the device number.
        fs_uuid: ``FS_IOC_GETFSUUID`` (ext4, XFS, tmpfs; Linux 6.9), hexadecimal; None where it is not answered.
    """

    mount_id: int
    unique_mount_id: int | None
    device: str
    inode: int
    fsid: str
    fs_uuid: str | None


class Replica(Struct, frozen=True):
    """A replica directory as found on disk.

    Attributes:
        name: the directory's name, ``topic-0`` or ``topic-0.<32 hex>-future``.
        topic: for ``delete`` and ``stray`` it may be cut short (``UnifiedLog.logDeleteDirName``).
        partition: its number.
        topic_id: from ``partition.metadata``; None when the file is missing or does not parse, which makes the log
            a stray one (``LogManager.isStrayKraftReplica``).
        suffix: what kind of replica it is.
        trouble: why it has no topic id although it may be a replica with data, in words that follow its path: its
            ``partition.metadata`` cannot be read, it is a symbolic link, a file. Empty: nothing is the matter.
        is_directory: False for what has the name of a current or future replica and is no directory.
    """

    name: str
    topic: str
    partition: int
    topic_id: Uuid | None
    suffix: ReplicaSuffix = ""
    trouble: str = ""
    is_directory: bool = True


class LoadedDirectory(Struct, frozen=True):
    """Content of a log directory at the start.

    Attributes:
        path: as configured.
        real_path: without symbolic links; what the mount table is searched for.
        meta_properties: content of ``meta.properties``; None when there is none.
        directory_id: the text after ``directory.id=`` in it, unchecked; None when there is none.
        replicas: every replica directory, by name, and what else has the name of a current or future replica.
            ``__cluster_metadata-*`` is not among them.
        unknown_names: sub-directories whose names Kafka cannot parse (a broker refuses to start with them), such as
            ``lost+found``.
        has_cluster_metadata: whether ``__cluster_metadata-0`` lies here.
        identity: which mount and directory this is; remembered, and compared by each later request.
        total_bytes: size of the file system.
        usable_bytes: what an unprivileged writer can still allocate.
        clean_shutdown: whether ``.kafka_cleanshutdown`` is there.
        clean_shutdown_epoch: the broker epoch in it; None when it is missing, empty or of an unknown version.
        kafka_trace: the file that shows that a Kafka broker has used this directory, by its path in the directory:
            ``recovery-point-offset-checkpoint``, ``replication-offset-checkpoint``, or a segment with data in one of
            the first replicas (``__cluster_metadata-0`` does not count). None: no such file was found.
    """

    path: str
    real_path: str
    meta_properties: bytes | None
    directory_id: str | None
    replicas: tuple[Replica, ...]
    unknown_names: tuple[str, ...]
    has_cluster_metadata: bool
    identity: MountIdentity
    total_bytes: int
    usable_bytes: int
    clean_shutdown: bool
    clean_shutdown_epoch: int | None
    kafka_trace: str | None = None


class ProbeResult(Struct, frozen=True):
    """A probe that the medium passed.

    Attributes:
        duration_us: the whole request inside the worker.
        steps: ``(name, microseconds)`` in order: ``identity``, ``meta``, ``known``, ``replica``, ``open``, ``last``,
            ``write``, ``fsync``, ``read`` and for a full probe ``create``, ``rename``, ``dirsync``; without those for
            which there was nothing to do.
        full: whether the steps of a full probe were taken.
        no_space: ``"ENOSPC"`` or ``"EDQUOT"`` when nothing new could be allocated although the medium is well. As a
            rule only a full probe can tell.
        identity: as compared.
        total_bytes: size of the file system.
        usable_bytes: what an unprivileged writer can still allocate.
        written: False when there was no room even for the overwrite (``no_space`` says so), as a file system that
            copies on write or a thin pool that is full has it: then only reading was proven.
    """

    duration_us: int
    steps: tuple[tuple[str, int], ...]
    full: bool
    no_space: str | None
    identity: MountIdentity
    total_bytes: int
    usable_bytes: int
    written: bool = True


class BlockedCall(Struct, frozen=True):
    """The request that occupies a directory right now.

    Attributes:
        number: counts the requests of this directory; another number means that the earlier one was answered.
        operation: ``"probe"``, ``"load"`` ...
        call: the step inside it, ``"fsync of .kjbod_probe"``; empty while the worker has not taken the request yet
            (it starts, is stopped, or gets no processor), which says nothing about the disk.
        age_ms: since the request was sent.
        pid: of the worker; 0 when there is none.
        process_state: letter of ``/proc/PID/stat``: ``D`` waits in the kernel, ``T`` stopped by a signal, ``R`` wants
            a processor; empty when unknown.
        wchan: kernel function in which it sleeps; empty when unknown.
    """

    number: int
    operation: str
    call: str
    age_ms: int
    pid: int = 0
    process_state: str = ""
    wchan: str = ""


class LateAnswer(Struct, frozen=True):
    """The answer to a request that had been abandoned.

    Attributes:
        path: the log directory as configured.
        number: of the request, as in :class:`BlockedCall`.
        operation: what was asked.
        age_ms: how long it took.
        error: what it failed with; None for success.
    """

    path: str
    number: int
    operation: str
    age_ms: int
    error: DirectoryError | None


class FileStatus(Struct, frozen=True):
    """A regular file of a replica.

    Attributes:
        name: without a directory.
        size: its length in bytes.
        mtime_ns: time of its last change, nanoseconds since the epoch. Copies keep it: Kafka's retention looks at it.
        inode: ``st_ino``; another one is another file of the same name.
        allocated: bytes that it takes on the medium (``st_blocks``); less than ``size`` for a sparse file.
    """

    name: str
    size: int
    mtime_ns: int
    inode: int
    allocated: int


class Piece(Struct, frozen=True):
    """The piece of a file that :meth:`DirectoryAgent.read_piece` put into a buffer.

    Attributes:
        length: bytes that were read; less than asked for at the end of the file and where a hole begins or ends.
        crc: CRC-32 (zlib) of them.
        hole: whether they are a hole of the file; then the buffer was left as it was, and ``crc`` is that of zeros.
    """

    length: int
    crc: int
    hole: bool = False


class Batches(Struct, frozen=True):
    """Result of checking the record batches of a segment.

    Attributes:
        offset: behind the last right one; the base offset of the segment when there is none.
        position: in the file, in bytes, behind the last right one.
        state: what :meth:`DirectoryAgent.check_batches` needs to go on.
    """

    offset: int
    position: int
    state: object


class CopyBuffer(Protocol):
    """Memory that the workers of one storage agent share, cut into slots: so that what is copied from one directory to
    another does not pass through the daemon."""

    @property
    def slots(self) -> int:
        """Number of slots."""

    @property
    def slot_bytes(self) -> int:
        """Size of each slot."""

    def close(self) -> None:
        """Free the buffer. A worker that still uses it is not disturbed."""


class Survey(Struct, frozen=True):
    """The surroundings of a log directory.

    Attributes:
        lock: major and minor device number and inode of ``.lock``; None when there is none.
        beside: other names on the way from the mount point down to it; None where that may not be listed.
    """

    lock: tuple[int, int, int] | None
    beside: tuple[str, ...] | None


@runtime_checkable
class CanSurvey(Protocol):
    """A directory agent that looks at what lies around its directory, for who shares disks with others."""

    async def survey(self, levels: Sequence[tuple[str, str]], *, timeout_ms: int) -> Survey:
        """Look. ``levels`` are the directories from the mount point down to the one above, each with the name in it
        that leads on. Errors as those of :class:`DirectoryAgent`."""


class CanProbe(Protocol):
    """Part of :class:`DirectoryAgent` that watches a directory."""

    on_late_answer: Callable[[LateAnswer], None] | None
    """Called on the event loop, between other callbacks; must not block. One owner: the health monitor."""

    @property
    def path(self) -> str:
        """The log directory as configured."""

    def blocked(self) -> BlockedCall | None:
        """The request in progress, or that of an earlier agent whose worker is stuck here; None when idle. Never waits,
        never touches the disk."""

    async def probe(self, *, full: bool, timeout_ms: int) -> ProbeResult:
        """Prove that this is the right directory and that its medium takes and gives back data.

        Identity; then what is old, from the medium: ``directory.id``, one block of a known file, ``partition.metadata``
        of one replica, and what the last probe wrote; then overwrite of a preallocated file, fsync, drop of the page
        cache, read, comparison; with ``full`` also create, fsync, rename, fsync of the directory. Blocks and replicas
        take turns; the one that was bad has the next turn too, so that a second probe confirms it.

        So a disk that fails, or that loses, changes or has lost what it holds, answers an error within so many probes:

            ==============================================  ================================================
            errors of all reads or all writes               1
            writes acknowledged and lost                    1
            wiped or truncated as a whole                   1
            set back to an older state of itself            1 (2 within one life of the worker)
            wiped or truncated where the known file is      64 (``worker.KNOWN_BLOCKS``); the first block of it: 1
              in part (256 KiB in one place)                  to 64
            wiped or truncated where replicas lie           the number of replicas here; on file systems that keep
                                                              small files in their metadata (btrfs) never
            elsewhere                                       never: nobody but the reader of those data can know
            ==============================================  ================================================

        Raises:
            DirectoryError: also ``EILSEQ`` for wrong content, ``ESTALE`` for another directory.
            WorkerUnavailable: also when something that is not kjbod's lies where a file of the probe has to be (a
                directory, a link, a FIFO), or when another process writes to it; that is no fault of the disk.
        """


class DirectoryAgent(CanProbe, Protocol):
    """All work on one log directory. See the module for the promises that hold for each method.

    Every method that is a coroutine raises :class:`DirectoryError`, :class:`DirectoryTimeout` or
    :class:`WorkerUnavailable`.
    """

    async def load(self, *, timeout_ms: int) -> LoadedDirectory:
        """Read everything that is needed at start; changes nothing on disk.

        Remembers the identity and the directory id: from here on each request that would find another one fails with
        ``ESTALE`` before it writes anything. ``timeout_ms`` is for each piece of the work, not for the whole: a
        directory of ten thousand replicas on a cold disk takes its time.
        """

    async def load_head(self, *, timeout_ms: int) -> LoadedDirectory:
        """Do the first part of :meth:`load`, in one request: everything except the topic ids, which are None in its
        replicas."""

    async def load_replicas(
        self, replicas: Sequence[Replica], *, known: bool = False, timeout_ms: int
    ) -> tuple[Replica, ...]:
        """The second part of :meth:`load`: the same replicas with their topic ids. ``timeout_ms`` is for each piece of
        the work; a probe goes between any two. ``known``: probes know them already, from another reading."""

    async def list_replicas(self, *, timeout_ms: int) -> tuple[Replica, ...]:
        """Return every replica directory as it is now, by name, without topic ids, and what else has the name of a
        current or future replica.

        Unlike :meth:`load_head` this expects the directory that was loaded, and leaves what probes compare unchanged.
        """

    async def lock(self, *, timeout_ms: int) -> None:
        """Take ``.lock`` as Kafka does (``FileChannel.tryLock``, a POSIX write lock on the whole file).

        Held until :meth:`unlock`, :meth:`StorageAgent.close` or the end of the daemon, also over the death of a worker,
        and given up at once at the end of the daemon even when the worker of this directory is stuck.

        Raises:
            DirectoryError: ``EAGAIN``: another process holds it.
        """

    async def unlock(self, *, timeout_ms: int) -> None:
        """Release the lock; the file stays. Does nothing if the lock is not held."""

    async def write_meta_properties(self, content: bytes, *, timeout_ms: int) -> None:
        """Replace ``meta.properties`` and remember the directory id in it as the one that must be there."""

    async def usable_bytes(self, *, timeout_ms: int) -> int:
        """Return the bytes that an unprivileged writer can still allocate now. The value in a probe is as old as the
        probe."""

    async def create_replica(self, topic: str, partition: int, topic_id: Uuid, *, timeout_ms: int) -> None:
        """Make ``<topic>-<partition>`` with its ``partition.metadata``. Succeeds again when both are there.

        Raises:
            DirectoryError: ``EEXIST``: it is there with another topic id, or without one but not empty.
        """

    async def rename_replica(self, name: str, new_name: str, *, timeout_ms: int) -> None:
        """Rename a replica directory. Both are single names that parse as replicas.

        Raises:
            DirectoryError: ``ENOENT``: no such replica; ``EEXIST``: there is one of the new name; ``EINVAL``: not
                names of replicas.
        """

    async def delete_replica(self, name: str, topic_id: Uuid | None, *, timeout_ms: int) -> None:
        """Remove a replica directory whose name ends in ``-delete``, ``-stray`` or ``-future``, with all regular files
        in it. ``timeout_ms`` is for each piece of the work. Succeeds when it is not there. Who may be deleted is
        decided by the caller; this only makes sure that it is the one that was meant.

        Raises:
            DirectoryError: ``ESTALE``: its ``partition.metadata`` has another topic id, and nothing was removed;
                ``ENOTEMPTY``: something other than regular files is in it, and nothing was removed; ``EINVAL``: not
                such a name.
        """

    async def create_future(self, name: str, topic_id: Uuid, *, timeout_ms: int) -> None:
        """Make ``<topic>-<partition>.<32 hex>-future`` with its ``partition.metadata``; as :meth:`create_replica`."""

    async def replica_sizes(self, names: Sequence[str], *, suffix: str = "", timeout_ms: int) -> Mapping[str, int]:
        """Lengths of all regular files of each replica together, in bytes; without those that are not there. With
        ``suffix`` only files count whose names end in it: ``.log`` is what Kafka calls the size of a replica.
        ``timeout_ms`` is for each piece of the work."""

    async def log_end_offset(self, name: str, *, timeout_ms: int) -> int | None:
        """The offset behind the last complete batch of a replica: 0 for one without segments, None when what is there
        cannot be read as a log. Reads the end of the last segment only, from the last entry of its offset index."""

    # ---- files of a replica, for moves: names are single names, of regular files; a link is not followed

    async def list_files(self, name: str, *, timeout_ms: int) -> tuple[FileStatus, ...]:
        """Regular files of a replica, by name. ``ENOENT``: no such replica. Something in it that is neither a file nor
        a directory of Kafka's is ``EINVAL``."""

    async def read_piece(
        self, buffer: CopyBuffer, slot: int, name: str, file: str, offset: int, length: int, *, timeout_ms: int
    ) -> Piece:
        """Read up to ``length`` bytes of a file into a slot."""

    async def write_piece(
        self, buffer: CopyBuffer, slot: int, name: str, file: str, offset: int, piece: Piece, *, timeout_ms: int
    ) -> None:
        """Write what a slot holds into a file of a ``-future`` replica, made where it is missing; a hole stays one.
        Durable only after :meth:`finish_file`, and proven only by :meth:`checksum`: the piece's CRC need not be
        compared here, which would cost much of the throughput and find nothing that the proof does not.

        Raises:
            DirectoryError: ``EINVAL``: not a ``-future`` replica, or not a file that may be written.
        """

    async def finish_file(self, name: str, file: str, size: int, mtime_ns: int, *, timeout_ms: int) -> None:
        """Give a file of a ``-future`` replica exactly this size and time, and make it durable, its name included."""

    async def remove_file(self, name: str, file: str, *, timeout_ms: int) -> None:
        """Remove a file of a ``-future`` replica; nothing happens when it is not there."""

    async def checksum(self, name: str, file: str, offset: int, length: int, *, cold: bool, timeout_ms: int) -> Piece:
        """Return the CRC-32 of a part of a file; ``cold``: read from the medium and not from the page cache."""

    async def check_batches(
        self, name: str, file: str, offset: int, length: int, before: Batches | None, *, timeout_ms: int
    ) -> tuple[Piece, Batches]:
        """As a cold :meth:`checksum` of the next part of a segment, ``<20 digits>.log``, and the CRCs of its record
        batches (magic 2, 1 and 0): what ``ensureValid`` is in Kafka. ``before``: what the part before it gave, None
        for the first one. It ends at the first thing that is no right batch, be it a torn tail or damage."""

    # ---- Kafka's checkpoint files: recovery-point-offset-checkpoint, log-start-offset-checkpoint,
    # replication-offset-checkpoint, cleaner-offset-checkpoint

    async def read_checkpoints(self, *, timeout_ms: int) -> Mapping[str, Mapping[tuple[str, int], int]]:
        """Offsets by (topic, partition), by name of the file; without files that are missing or unreadable."""

    async def change_checkpoints(
        self, changes: Mapping[str, Mapping[tuple[str, int], int | None]], *, timeout_ms: int
    ) -> None:
        """Set offsets, or remove them (None), by name of the file, in Kafka's format; other lines stay as they are.
        A file that is missing is made only where there is something to set; one that cannot be read is left alone."""

    async def clear_clean_shutdown(self, *, timeout_ms: int) -> None:
        """Remove ``.kafka_cleanshutdown``, as Kafka does right after it was read, so that a crash counts as one."""

    async def write_clean_shutdown(self, broker_epoch: int, *, timeout_ms: int) -> None:
        """Write ``.kafka_cleanshutdown`` (``{"version":0,"brokerEpoch":N}``)."""


class StorageOptions(Struct, frozen=True, kw_only=True):
    """Arguments of every storage agent.

    Attributes:
        clock: for ages.
        role: ``kjbod.role``. Two processes with different roles may watch one directory, so names of probe files
            carry it.
        log: event name and fields, for things worth a line: a worker that died, was started again.
    """

    clock: "Clock"
    role: str = "broker"
    log: Callable[[str, dict[str, object]], None] = lambda event, fields: None


class StorageAgent(Protocol):
    """Plug-in that works on log directories; made by name with :func:`kjbod_host.storage.registry.create`."""

    async def start(self) -> None:
        """Start the agent. Touches no log directory."""

    def directory(self, path: str) -> DirectoryAgent:
        """Return the agent of one log directory, always the same object for the same text. Touches no disk."""

    def renew(self, path: str) -> DirectoryAgent:
        """A new agent for this path, for a disk that was replaced; :meth:`directory` gives it from here on. The old one
        is abandoned: its calls fail from now on, its lock is given up, a worker that is stuck stays stuck and keeps
        nothing. Where the disk was not replaced and a worker is stuck in it, the new agent waits for that one."""

    def copy_buffer(self, slots: int, slot_bytes: int) -> CopyBuffer:
        """Return memory for :meth:`DirectoryAgent.read_piece` and :meth:`DirectoryAgent.write_piece`."""

    async def close(self) -> None:
        """Give everything up: locks, workers, queued calls (they raise :class:`WorkerUnavailable`).

        Returns within 200 ms with any number of directories stuck, and leaves nothing of the daemon's behind: no
        port, no lock. Never raises.
        """


@runtime_checkable
class HasProcesses(Protocol):
    """A storage agent with separate processes, whose use of the host ``kjbod status`` shows."""

    def process_ids(self) -> tuple[int, ...]:
        """Return the pids of all processes, including the workers."""

    def worker_ids(self) -> tuple[int, ...]:
        """Return the pids of the processes that touch disks."""


def worker_ids(storage: StorageAgent) -> tuple[int, ...]:
    """Return the pids of a storage agent's processes that touch disks."""
    return storage.worker_ids() if isinstance(storage, HasProcesses) else ()


def helper_ids(storage: StorageAgent) -> tuple[int, ...]:
    """Return the pids of a storage agent's processes that touch no disk."""
    if not isinstance(storage, HasProcesses):
        return ()
    workers = storage.worker_ids()
    return tuple(pid for pid in storage.process_ids() if pid not in workers)


class StorageAgentFactory(Protocol):
    """The class or function that an entry point of the group ``kjbod.storage`` names."""

    def __call__(self, options: StorageOptions) -> StorageAgent:
        """Return a storage agent that is not started."""
