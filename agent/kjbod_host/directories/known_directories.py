"""The file in which an agent remembers which directory id lies under which path. Blocking code.

It is small and lies in ``kjbod.state.dir``, outside the disks that it names: a disk that does not answer any more
cannot say which directory id it had.
"""

import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from kjbod.documents import int_of, parse_document, text_of
from kjbod.errors import ConfigError, StorageError
from kjbod.files import make_directories, read_file, write_atomically
from kjbod.ids import Uuid
from kjbod.meta_properties import KNOWN_DIRECTORIES_NAME
from kjbod.permissions import DENIED
from kjbod_host.directories.start_up_rules import KnownDirectory, Memory, Retired, StartUpError
from kjbod_host.files.file_worker import FILE_BYTES_MAX


class KnownDirectories:
    """The file of :class:`~.start_up_rules.Memory`. :meth:`load` and :meth:`save` block, and are for commands.

    Args:
        state_dir: ``kjbod.state.dir``; made when it is missing, it is no log directory.
        node_id: another node's memory is not used.
    """

    def __init__(self, state_dir: Path, node_id: int) -> None:
        self.path = state_dir / KNOWN_DIRECTORIES_NAME
        self._node_id = node_id

    def load(self) -> Memory:
        """The memory as it was saved; empty where there is no file, or none that can be used: it is only a memory.

        Raises:
            ConfigError: it is another node's.
            StartUpError: the state directory cannot be made or read.
        """
        try:
            make_directories(self.path.parent)
            content = read_file(self.path, bytes_max=FILE_BYTES_MAX)
        except FileNotFoundError:
            return Memory()
        except OSError as error:
            raise self.unusable(error) from None
        return self.parse(content)

    def parse(self, content: bytes) -> Memory:
        """The memory in the file's bytes; empty where they cannot be used: it is only a memory.

        Raises:
            ConfigError: it is another node's, who needs it when a disk is away: it must not be overwritten.
        """
        try:
            document = parse_document(content)
            node_id = int_of(document["node_id"])
            memory = _memory_of(document)
        except (ValueError, KeyError, TypeError, AttributeError):
            return Memory()
        if node_id != self._node_id:
            raise ConfigError(
                f"kjbod.state.dir={self.path.parent}: {self.path} is what node {node_id} remembers of its disks: give "
                f"node {self._node_id} a kjbod.state.dir of its own (or remove the file, if there is no node {node_id} "
                "any more)"
            )
        return memory

    def content(self, memory: Memory) -> bytes:
        """Bytes of the file for a memory."""
        document = {"version": 2, "node_id": self._node_id, **_document_of(memory)}
        return json.dumps(document, indent=2).encode() + b"\n"

    def save(self, memory: Memory) -> None:
        """Replace the memory.

        Raises:
            StartUpError: the file cannot be written.
        """
        try:
            write_atomically(self.path, self.content(memory))
        except OSError as error:
            raise self.unusable(error) from None

    def unusable(self, error: OSError) -> StorageError | ConfigError:
        """The state directory cannot be used; one that is somebody else's is a mistake of configuration."""
        where = error.filename or self.path
        if error.errno in DENIED:
            return ConfigError(f"kjbod.state.dir={self.path.parent}: {error.strerror}")
        if error.errno in (errno.EINVAL, errno.EFBIG):  # of :func:`kjbod.files.read_file`
            return StartUpError(f"kjbod.state.dir={self.path.parent}: {where}: {error.strerror}: remove it")
        return StartUpError(
            f"kjbod.state.dir={self.path.parent}: {where}: {error.strerror}: it must be writable, outside log.dirs"
        )


def _memory_of(document: Mapping[str, Any]) -> Memory:
    """The memory in a file of version 1 (ids by path) or 2."""
    if document["version"] == 1:
        return Memory({str(path): KnownDirectory(Uuid.parse(text)) for path, text in document["directories"].items()})
    if document["version"] != 2:
        return Memory()
    directories = {
        str(path): KnownDirectory(
            Uuid.parse(one["directory_id"]),
            None if one["device"] is None else text_of(one["device"]),
            None if one["serial"] is None else text_of(one["serial"]),
            None if one["seen_ms"] is None else int_of(one["seen_ms"]),
            None if one.get("mount_point") is None else text_of(one["mount_point"]),
        )
        for path, one in document["directories"].items()
    }
    retired = (
        Retired(
            Uuid.parse(one["directory_id"]), text_of(one["path"]), int_of(one["at_ms"]), Uuid.parse(one["replaced_by"])
        )
        for one in document["retired"]
    )
    return Memory(directories, tuple(retired))


def _document_of(memory: Memory) -> dict[str, object]:
    return {
        "directories": {path: _plain(known) for path, known in sorted(memory.directories.items())},
        "retired": [_plain(one) for one in memory.retired],
    }


def _plain(one: KnownDirectory | Retired) -> dict[str, object]:
    return {key: str(value) if isinstance(value, Uuid) else value for key, value in asdict(one).items()}
