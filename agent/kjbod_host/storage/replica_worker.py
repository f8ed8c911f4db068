"""The worker's operations on replicas: make, rename, remove, measure, and copy files.

The process is that of :mod:`kjbod_host.storage.worker`. Names are single names below the log directory, and nothing is
followed: a symbolic link, a FIFO or a file of another name in the place of a replica or of one of its files is refused.

Every operation that changes something can be killed at any system call: the log directory is then as it was before, or
as it is after. A replica comes into being by a rename, under a name that Kafka takes for a deleted one until then; it
goes by a rename to such a name, before the first of its files goes; every other file is replaced by tmp, fsync, rename.
Only the files of a ``-future`` replica are written in place: nobody takes one for complete before it was compared.

Memory of the copy buffer comes with each request that needs it (``SCM_RIGHTS``) and is given up with the first one that
is no copy's, so that a worker keeps none of it from one probe to the next.
"""

# pathlib knows no dir_fd, and importing it costs every worker memory.
# ruff: noqa: PTH208

from __future__ import annotations

import binascii
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import socket
import stat
from collections.abc import Iterator

from kjbod_host.storage.checkpoints import CHECKPOINT_FILES, changed
from kjbod_host.storage.segments import BatchCheck, LogEnd, last_indexed, segment_base
from kjbod_host.storage.worker import (
    PARTITION_METADATA,
    RECEIVE_BYTES,
    SMALL_FILE_BYTES,
    Refused,
    Unframer,
    Worker,
    delete_form,
    frame,
    obstacle_of,
    parse_replica,
    topic_id_of,
)

TYPE_CHECKING = False  # importing typing costs memory
if TYPE_CHECKING:
    from typing import Any

FDS_PER_REQUEST = 1
CHECKSUM_BYTES = 4 << 20
"""Bytes per read for a checksum."""
SYNC_BEHIND_BYTES = 8 << 20
"""What was written so far behind the current piece is on the medium: so no fsync of a large file, and no probe, waits
for more than this."""
UNLINKS_PER_REQUEST = 50
SIZES_PER_REQUEST = 2000
"""Files whose size is read before a request for sizes is answered."""
BATCHES_PER_REQUEST = 5000
"""Batch headers that are read by one request for a log's end."""
PAGE = 1 << 12
DIRECT_BYTES = 256 << 10
"""Minimum size of a part of a file that is read past the page cache."""
COPYING = ("list_files", "read_piece", "write_piece", "finish_file", "checksum", "check_batches")
DELETABLE = ("delete", "stray", "future")

_SYNC_FILE_RANGE_WRITE, _SYNC_FILE_RANGE_WAIT = 2, 1 | 2 | 4
_FALLOC_FL_KEEP_SIZE, _FALLOC_FL_PUNCH_HOLE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)
_off = ctypes.c_int64

_zero_crcs: dict[int, int] = {}


def crc_of_zeros(length: int) -> int:
    """Return the CRC-32 of ``length`` zeros, cached for repeated lengths."""
    found = _zero_crcs.get(length)
    if found is None:
        found, zeros = 0, bytes(min(length, CHECKSUM_BYTES))
        for start in range(0, length, CHECKSUM_BYTES):
            found = binascii.crc32(zeros[: length - start], found)
        if len(_zero_crcs) < 16:
            _zero_crcs[length] = found
    return found


def _sync_range(fd: int, offset: int, length: int, flags: int) -> None:
    """``sync_file_range``: writeback of data alone, started or waited for. Where there is none fsync does it all."""
    if length > 0 and _libc.sync_file_range(fd, _off(offset), _off(length), flags) != 0:
        number = ctypes.get_errno()
        if number not in (errno.ENOSYS, errno.EINVAL, errno.ESPIPE):
            raise OSError(number, os.strerror(number))


class ReplicaWorker(Worker):
    """A worker that also carries out requests for replicas."""

    def __init__(self, path: str, role: str, status: int, keeper: socket.socket) -> None:
        super().__init__(path, role, status, keeper)
        self.fds: tuple[int, ...] = ()
        """Descriptors that came with the request in progress."""
        self._memories: dict[int, tuple[mmap.mmap, memoryview]] = {}
        """Memory of the last pieces, by inode of the copy buffer, 0 for our own. Given up with the first request that
        is none of a copy's, such as the next probe: to map it anew for each piece costs as much as to read it."""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["op"] not in COPYING:
            self._give_up_memory()
        return super().answer(request)

    def _give_up_memory(self) -> None:
        for memory, view in self._memories.values():
            view.release()
            memory.close()
        self._memories.clear()

    # names and files -----------------------------------------------------------------------------------------------

    def _check_name(self, name: str, *suffixes: str) -> None:
        """Require that a name is the single name of a replica of one of these kinds."""
        parsed = parse_replica(name)
        if "/" in name or parsed is None or (suffixes and parsed[2] not in suffixes):
            raise Refused(errno.EINVAL, self._call)

    @contextlib.contextmanager
    def _replica(self, root: int, name: str, call: str, *suffixes: str) -> Iterator[int]:
        """Open a replica directory for a step: what has its name is a directory, and no link to one."""
        self._step(f"{call} {name}")
        self._check_name(name, *suffixes)
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
        try:
            yield fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _file(self, root: int, request: dict[str, Any], call: str, flags: int = os.O_RDONLY) -> Iterator[int]:
        """Open a regular file of a replica; for writing only one of a future replica, and not its metadata."""
        name, file = request["name"], request["file"]
        suffixes = () if flags == os.O_RDONLY else ("future",)
        with self._replica(root, name, call, *suffixes) as replica:
            self._step(f"{call} {name}/{file}")
            self._check_file(file, writing=bool(suffixes))
            fd = os.open(file, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644, dir_fd=replica)
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode) or (suffixes and status.st_nlink > 1):
                    raise Refused(errno.EINVAL, f"{self._call}: it is no regular file, or has other names")
                yield fd
            finally:
                os.close(fd)

    def _check_file(self, file: str, *, writing: bool) -> None:
        if "/" in file or file in ("", ".", "..") or (writing and file == PARTITION_METADATA):
            raise Refused(errno.EINVAL, self._call)

    def _lstat(self, root: int, name: str) -> os.stat_result | None:
        """Return the status of a name, without following a link; None: the name does not exist."""
        try:
            return os.stat(name, dir_fd=root, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _is_replica(self, root: int, name: str) -> bool:
        """Whether a directory has this name. A link, a file or a mount of this name is refused."""
        found = self._lstat(root, name)
        if found is None:
            return False
        if not stat.S_ISDIR(found.st_mode) or found.st_dev != os.fstat(root).st_dev:
            raise Refused(errno.ENOTDIR, f"{self._call}: it is a link, a file or a mount and no replica directory")
        return True

    # make, rename, remove ------------------------------------------------------------------------------------------

    def op_create_replica(self, root: int, request: dict[str, Any], directory_id: str | None) -> None:
        """Make the current log of a partition."""
        self._make(root, request["name"], request["topic_id"], "")

    def op_create_future(self, root: int, request: dict[str, Any], directory_id: str | None) -> None:
        """Make the log to which a replica moves."""
        self._make(root, request["name"], request["topic_id"], "future")

    def _make(self, root: int, name: str, topic_id: str, suffix: str) -> None:
        self._step(f"create of {name}")
        self._check_name(name, suffix)
        found = self._lstat(root, name)
        if found is None:
            self._make_new(root, name, topic_id)
        elif not stat.S_ISDIR(found.st_mode):
            raise Refused(errno.EEXIST, f"create of {name}: something that is no directory has its name")
        else:
            self._complete(root, name, name, topic_id)
        self._sync_directory(root)

    def _make_new(self, root: int, name: str, topic_id: str) -> None:
        """Make a replica directory with its metadata before it gets its name. Until then Kafka treats it as a deleted
        replica."""
        stem, _, _ = name.rpartition(".") if name.endswith("-future") else (name, "", "")
        making = delete_form(f"{stem}.kjbod-new-future")
        self._step(f"mkdir of {making}")
        with contextlib.suppress(FileExistsError):  # a crash left it
            os.mkdir(making, 0o755, dir_fd=root)
        self._complete(root, making, name, topic_id, left_over=True)
        self._step(f"rename of {making} to {name}")
        os.rename(making, name, src_dir_fd=root, dst_dir_fd=root)
        self._places.append(f"0 {name}")

    def _complete(self, root: int, name: str, wanted: str, topic_id: str, *, left_over: bool = False) -> None:
        """Check that a directory has this topic id; write the topic id into an empty directory."""
        with self._replica(root, name, "open of") as replica:
            content = self._read_if_file(replica, PARTITION_METADATA, b"")
            if content is not None and topic_id_of(content) == topic_id:
                self._sync_directory(replica)  # a crash may have come before
                return
            if content is not None and not left_over:
                raise Refused(errno.EEXIST, f"create of {wanted}")
            self._step(f"list of {name}")
            if set(os.listdir(replica)) - {PARTITION_METADATA, PARTITION_METADATA + ".tmp"}:
                if left_over:
                    raise Refused(errno.ENOTEMPTY, f"create of {wanted}: something is in {name}: remove it")
                raise Refused(errno.EEXIST, f"create of {wanted}")
            # No newline at the end: PartitionMetadataFile writes none.
            self._replace(replica, PARTITION_METADATA, [f"version: 0\ntopic_id: {topic_id}".encode()])
            if not left_over:
                self._places.append(f"0 {wanted}")

    def op_rename_replica(self, root: int, request: dict[str, Any], directory_id: str | None) -> None:
        """Rename, refusing to replace: ``rename`` would silently take the place of an empty directory."""
        name, new_name = request["name"], request["new_name"]
        self._step(f"rename of {name} to {new_name}")
        self._check_name(name)
        self._check_name(new_name)
        self._rename(root, name, new_name)

    def _rename(self, root: int, name: str, new_name: str) -> None:
        self._step(f"rename of {name} to {new_name}")
        if self._lstat(root, new_name) is not None:
            raise Refused(errno.EEXIST, self._call)
        if not self._is_replica(root, name):
            raise Refused(errno.ENOENT, self._call)
        os.rename(name, new_name, src_dir_fd=root, dst_dir_fd=root)
        self._places.append(f"0 {new_name}")
        self._sync_directory(root)

    def op_delete_replica(self, root: int, request: dict[str, Any], directory_id: str | None) -> bool:
        """Remove some files of a replica, or the last ones and itself; whether there is more to remove.

        Everything in it is looked at before each part, so that nothing goes where something else is. A stray or future
        one gets the name of a deleted one first: a crash must leave none that has lost a part.
        """
        name, topic_id = request["name"], request["topic_id"]
        self._step(f"delete of {name}")
        self._check_name(name, *DELETABLE)
        deleted = delete_form(name)
        if deleted != name and self._is_replica(root, name):
            self._check_deletable(root, name, topic_id)
            self._rename(root, name, deleted)
        self._step(f"delete of {deleted}")
        if not self._is_replica(root, deleted):
            self._sync_directory(root)  # an rmdir that nobody was told of may not be durable yet
            return False
        files = self._check_deletable(root, deleted, topic_id)
        with self._replica(root, deleted, "delete of") as replica:
            for file in files[:UNLINKS_PER_REQUEST]:
                self._step(f"unlink of {deleted}/{file}")
                os.unlink(file, dir_fd=replica)
        if len(files) > UNLINKS_PER_REQUEST:
            return True
        self._step(f"rmdir of {deleted}")
        os.rmdir(deleted, dir_fd=root)
        self._sync_directory(root)
        return False

    def _check_deletable(self, root: int, name: str, topic_id: str | None) -> list[str]:
        """Return the files of a replica in the order of their removal: ``partition.metadata`` goes last."""
        with self._replica(root, name, "delete of") as replica:
            with os.scandir(replica) as entries:
                files = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
            others = sorted(file for file, regular in files.items() if not regular)
            if others:
                raise Refused(errno.ENOTEMPTY, f"delete of {name}: {others[0]} in it is no regular file")
            content = self._read_if_file(replica, PARTITION_METADATA, b"")
            found = None if content is None else topic_id_of(content)
            if found != topic_id and not (content is None and not files):
                raise Refused(errno.ESTALE, f"comparison of {name}/{PARTITION_METADATA}")
        return sorted(files, key=lambda file: (file == PARTITION_METADATA, file))

    # measure -------------------------------------------------------------------------------------------------------

    def op_list_replicas(self, root: int, request: dict[str, Any], directory_id: str | None) -> list[list[Any]]:
        """Names of the replica directories, each with its parts; of what is no directory, what it is."""
        self._step(f"list of {self.path}")
        found: list[list[Any]] = []
        with os.scandir(root) as entries:
            for entry in entries:
                parsed = parse_replica(entry.name)
                if parsed is None:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    found.append([entry.name, parsed])
                elif (obstacle := obstacle_of(entry)) is not None:
                    found.append([entry.name, parsed, obstacle])
        return sorted(found)

    def op_replica_sizes(self, root: int, request: dict[str, Any], directory_id: str | None) -> list[int | None]:
        """Sizes of the first of these replicas, as many as one request may take; None for one that is not there."""
        sizes: list[int | None] = []
        seen = 0
        for name in request["names"]:
            try:
                found = self._scan(root, name)
            except (FileNotFoundError, NotADirectoryError):
                sizes.append(None)
                continue
            suffix = request["suffix"]
            counted = (status for file, status in found if file.endswith(suffix) and stat.S_ISREG(status.st_mode))
            sizes.append(sum(status.st_size for status in counted))
            seen += len(found)
            if seen >= SIZES_PER_REQUEST:
                break
        return sizes

    def op_list_files(self, root: int, request: dict[str, Any], directory_id: str | None) -> list[list[Any]]:
        """The fields of ``FileStatus`` of each file, by name."""
        found = self._scan(root, request["name"])
        if not all(stat.S_ISREG(status.st_mode) for _, status in found):
            raise Refused(errno.EINVAL, f"{self._call}: there is something in it that is no regular file")
        return [
            [name, status.st_size, status.st_mtime_ns, status.st_ino, status.st_blocks * 512] for name, status in found
        ]

    def _scan(self, root: int, name: str) -> list[tuple[str, os.stat_result]]:
        """Return the status of everything in a replica directory, by name, without files that vanish during the
        scan."""
        found: list[tuple[str, os.stat_result]] = []
        with self._replica(root, name, "list of") as replica, os.scandir(replica) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    found.append((entry.name, entry.stat(follow_symlinks=False)))
        return sorted(found, key=lambda pair: pair[0])

    def op_log_end_offset(self, root: int, request: dict[str, Any], directory_id: str | None) -> dict[str, Any]:
        """Return ``{"end": offset or None}``, or ``{"state": ...}`` for the next request."""
        name, state = request["name"], request["state"]
        with self._replica(root, name, "list of") as replica:
            bases = [base for file in os.listdir(replica) if (base := segment_base(file)) is not None]
            if not bases:
                return {"end": 0}
            base = max(bases)
            with self._file(root, {"name": name, "file": f"{base:020d}.log"}, "read of") as fd:
                size = os.fstat(fd).st_size
                position = self._indexed(replica, base) if state is None else state[0]
                position = position if position < size else 0
                end = LogEnd(base, size, lambda offset, length: os.pread(fd, length, offset), position)
                if state is not None:
                    end.offset, end.found = state[1], state[2]
                end.advance(BATCHES_PER_REQUEST)
                if end.done and not end.found and end.position:  # the index is not of this log
                    end = LogEnd(base, size, lambda offset, length: os.pread(fd, length, offset))
                    end.advance(BATCHES_PER_REQUEST)
        return {"end": end.offset} if end.done else {"state": [end.position, end.offset, end.found]}

    def _indexed(self, replica: int, base: int) -> int:
        """Position of the last batch that the offset index of a segment knows; 0 without an index."""
        try:
            fd = os.open(
                f"{base:020d}.index", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=replica
            )
        except FileNotFoundError:
            return 0
        try:
            return last_indexed(os.fstat(fd).st_size, lambda offset, length: os.pread(fd, length, offset))
        finally:
            os.close(fd)

    # copy ----------------------------------------------------------------------------------------------------------

    def _map(self, inode: int, fd: int, size: int) -> memoryview:
        if inode not in self._memories:
            memory = mmap.mmap(fd, size, flags=mmap.MAP_SHARED if fd >= 0 else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._memories[inode] = memory, memoryview(memory)
        return self._memories[inode][1]

    def _slot(self, request: dict[str, Any]) -> memoryview:
        """Return the memory of a slot."""
        status = os.fstat(self.fds[0])
        offset, length = request["place"]
        return self._map(status.st_ino, self.fds[0], status.st_size)[offset : offset + length]

    def op_read_piece(self, root: int, request: dict[str, Any], directory_id: str | None) -> list[Any]:
        """Read data into the slot, or find a hole; return the fields of ``Piece``."""
        offset = request["offset"]
        with self._file(root, request, "read of") as fd, self._slot(request) as slot:
            wanted = min(request["length"], len(slot), os.fstat(fd).st_size - offset)
            if wanted <= 0:
                return [0, 0, False]
            data, hole = _data_and_hole(fd, offset)
            if data > offset:
                length = min(wanted, data - offset)
                return [length, crc_of_zeros(length), True]
            wanted = min(wanted, hole - offset)
            with _direct(fd, offset, wanted):
                length = _read_into(fd, slot, offset, wanted)
            return [length, binascii.crc32(slot[:length]), False]

    def op_write_piece(self, root: int, request: dict[str, Any], directory_id: str | None) -> None:
        """Write a slot, start its writeback, and wait for the writeback of earlier pieces."""
        offset, (length, _, hole) = request["offset"], request["piece"]
        with self._file(root, request, "write of", os.O_WRONLY | os.O_CREAT) as fd:
            if hole:
                _make_hole(fd, offset, length)
                return
            with self._slot(request) as slot:
                written = 0
                while written < length:
                    written += os.pwrite(fd, slot[written:length], offset + written)
            _sync_range(fd, offset, length, _SYNC_FILE_RANGE_WRITE)
            start, end = max(0, offset - 2 * SYNC_BEHIND_BYTES), offset - SYNC_BEHIND_BYTES
            _sync_range(fd, start, end - start, _SYNC_FILE_RANGE_WAIT)

    def op_finish_file(self, root: int, request: dict[str, Any], directory_id: str | None) -> None:
        """Set size and time, and fsync a file; then drop it from the page cache, so that it can be read from the
        medium."""
        size = request["size"]
        with self._file(root, request, "write of", os.O_WRONLY | os.O_CREAT) as fd:
            if os.fstat(fd).st_size != size:
                os.ftruncate(fd, size)
            os.utime(fd, ns=(request["mtime_ns"], request["mtime_ns"]))
            self._step(f"fsync of {request['name']}/{request['file']}")
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        with self._replica(root, request["name"], "fsync of") as replica:
            os.fsync(replica)

    def op_remove_file(self, root: int, request: dict[str, Any], directory_id: str | None) -> None:
        """Remove a file of a future replica."""
        name, file = request["name"], request["file"]
        with self._replica(root, name, "open of", "future") as replica:
            self._step(f"unlink of {name}/{file}")
            self._check_file(file, writing=True)
            found = self._lstat(replica, file)
            if found is not None:
                if not stat.S_ISREG(found.st_mode):
                    raise Refused(errno.EINVAL, f"{self._call}: it is no regular file")
                os.unlink(file, dir_fd=replica)
            self._step(f"fsync of {name}")
            os.fsync(replica)

    def op_checksum(self, root: int, request: dict[str, Any], directory_id: str | None) -> list[Any]:
        """Return the fields of ``Piece`` for a part of a file."""
        crc = length = 0
        with self._file(root, request, "read of") as fd:
            for data in self._parts(fd, request["offset"], request["length"], cold=request["cold"]):
                crc = binascii.crc32(data, crc)
                length += len(data)
        return [length, crc, False]

    def op_check_batches(self, root: int, request: dict[str, Any], directory_id: str | None) -> list[Any]:
        """Return the fields of ``Piece`` for a part of a segment on the medium, and the state of the batch check after
        it."""
        crc = length = 0
        base = segment_base(request["file"])
        if base is None:
            raise Refused(errno.EINVAL, f"read of {request['name']}/{request['file']}: it is no segment")
        check = BatchCheck(base) if request["state"] is None else BatchCheck.of(request["state"])
        with self._file(root, request, "read of") as fd:
            for data in self._parts(fd, request["offset"], request["length"], cold=True):
                crc = binascii.crc32(data, crc)
                check.feed(data)
                length += len(data)
        return [[length, crc, False], check.state]

    def _parts(self, fd: int, offset: int, length: int, *, cold: bool) -> Iterator[memoryview]:
        """Contents of a file there, piece by piece, each in the same memory; ``cold`` as the medium gives it."""
        position, end = offset, offset + length
        view = self._map(0, -1, CHECKSUM_BYTES)
        if cold:  # a page that is not on the medium yet stays in the cache else
            _sync_range(fd, offset, length, _SYNC_FILE_RANGE_WAIT)
            os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)
        with _direct(fd, offset, length if cold else 0):
            while position < end:
                got = _read_into(fd, view, position, min(end - position, CHECKSUM_BYTES))
                if not got:
                    return
                yield view[:got]
                position += got

    # checkpoints ---------------------------------------------------------------------------------------------------

    def op_read_checkpoint(self, root: int, request: dict[str, Any], directory_id: str | None) -> str | None:
        """Content of a checkpoint file; None when there is none."""
        content = self._checkpoint(root, request["name"])
        return None if content is None else content.decode("latin-1")

    def op_change_checkpoint(self, root: int, request: dict[str, Any], directory_id: str | None) -> None:
        """Replace a checkpoint file when it can be read and something changes."""
        name = request["name"]
        changes = [(topic, partition, offset) for topic, partition, offset in request["changes"]]
        content = changed(self._checkpoint(root, name), changes)
        if content is not None:
            self._replace(root, name, [content])
        else:
            self._sync_directory(root)  # a change that nobody was told of may not be durable yet

    def _checkpoint(self, root: int, name: str) -> bytes | None:
        self._step(f"read of {name}")
        if name not in CHECKPOINT_FILES:
            raise Refused(errno.EINVAL, self._call)
        try:
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=root)
        except FileNotFoundError:
            return None
        try:
            content = _read_all_cold(fd)
            if _read_all_cold(fd) != content:  # these files have no checksums
                raise Refused(errno.EILSEQ, f"second {self._call}")
            return content
        finally:
            os.close(fd)


def _read_all_cold(fd: int) -> bytes:
    """Return a whole file, read from the medium."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    content = b""
    while data := os.pread(fd, SMALL_FILE_BYTES, len(content)):
        content += data
    return content


def _data_and_hole(fd: int, offset: int) -> tuple[int, int]:
    """Return the start of the next data, and of the hole after it. Without support for holes everything is data."""
    end = os.fstat(fd).st_size
    try:
        data = os.lseek(fd, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole up to the end
            return end, end
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return offset, end
        raise
    return data, os.lseek(fd, offset, os.SEEK_HOLE) if data == offset else data


@contextlib.contextmanager
def _direct(fd: int, offset: int, length: int) -> Iterator[None]:
    """Read a large part of a file past the page cache meanwhile, where its file system can do that: a copy must not
    drive out what others need, and costs half the processor time so. What others have written and is not on the medium
    yet the kernel writes first."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    direct = not offset % PAGE and length >= DIRECT_BYTES
    if direct:
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
    try:
        yield
    finally:
        if direct:
            fcntl.fcntl(fd, fcntl.F_SETFL, flags)


def _read_into(fd: int, view: memoryview, offset: int, wanted: int) -> int:
    """Fill page-aligned memory from a file; return the number of bytes read, at most ``wanted``."""
    length = 0
    while length < wanted:
        end = min(len(view), (wanted + PAGE - 1) & -PAGE)  # whole pages, as O_DIRECT has it
        try:
            got = os.preadv(fd, [view[length:end]], offset + length)
        except OSError as error:
            flags = fcntl.fcntl(fd, fcntl.F_GETFL)
            if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
                raise
            fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)  # larger blocks than pages, or an odd end
            continue
        if not got:
            break
        length += got
    return min(length, wanted)


def _make_hole(fd: int, offset: int, length: int) -> None:
    """Make a part of a file read as zeros, taking no room where the file system can do that."""
    size = os.fstat(fd).st_size
    if size < offset + length:
        os.ftruncate(fd, offset + length)
    inside = min(size, offset + length) - offset
    if inside <= 0:
        return
    mode = _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE
    if _libc.fallocate(fd, mode, _off(offset), _off(inside)) == 0:
        return
    number = ctypes.get_errno()
    if number not in (errno.EOPNOTSUPP, errno.ENOSYS):
        raise OSError(number, os.strerror(number))
    zeros = bytes(min(inside, CHECKSUM_BYTES))
    for start in range(0, inside, CHECKSUM_BYTES):
        os.pwrite(fd, zeros[: inside - start], offset + start)


def run(config: dict[str, Any], channel: socket.socket, status: int, keeper: socket.socket) -> None:
    """Answer requests until the daemon closes its end."""
    worker = ReplicaWorker(config["path"], config["role"], status, keeper)
    unframer = Unframer()
    fds: list[int] = []
    room = socket.CMSG_SPACE(FDS_PER_REQUEST * 4)
    while True:
        data, ancillary, _, _ = channel.recvmsg(RECEIVE_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return
        for _, _, received in ancillary:
            fds += memoryview(received).cast("i")
        for request in unframer.feed(data):
            worker.fds = (fds.pop(0),) if "place" in request else ()  # each request for a slot came with one
            answer = worker.answer(request)
            for fd in worker.fds:
                os.close(fd)
            worker.fds = ()
            channel.sendall(frame(answer))
