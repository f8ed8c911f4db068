"""The file in which an agent or a guard remembers its log directories. Blocking code.

It is small and lies in ``kjbod.state.dir``, outside the disks that it names: a disk that does not answer any more
cannot say which directory id it had.

==================  ====================================================================================================
key                 content
==================  ====================================================================================================
``version``         2; files of version 1 are read. One of another version is not used, and replaced
``node_id``         the node whose file it is; another node is refused
``directories``     by path: directory id, device and mount point (:class:`~.start_up_rules.KnownDirectory`)
``retired``         directories that were replaced (:class:`~.start_up_rules.Retired`)
``last_read``       content of each directory as a guard last read it, with a version of its own
                    (:mod:`kjbod_guard.recall`). An agent keeps this part unchanged. Earlier releases, which had another
                    file for this part, ignore the key
==================  ====================================================================================================
"""

import errno
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import asdict

from kjbod.documents import int_of, parse_document, text_of
from kjbod.errors import ConfigError, StorageError
from kjbod.files import make_directories, read_file
from kjbod.ids import Uuid
from kjbod.meta_properties import KNOWN_DIRECTORIES_NAME
from kjbod.permissions import DENIED
from kjbod_host.directories.start_up_rules import KnownDirectory, Memory, Retired, StartUpError
from kjbod_host.files.file_worker import FILE_BYTES_MAX

LAST_READ_DEPTH_MAX: Final = 8
"""Maximum nesting of objects and lists in ``last_read``: a deeper part might be readable but not writable."""


class KnownDirectories:
    """The file of :class:`~.start_up_rules.Memory`. :meth:`load` blocks, and is for commands.

    Args:
        state_dir: ``kjbod.state.dir``; made when it is missing, it is no log directory.
        node_id: another node's memory is not used.
    """

    def __init__(self, state_dir: Path, node_id: int) -> None:
        self.path = state_dir / KNOWN_DIRECTORIES_NAME
        self._node_id = node_id

    def load(self) -> Memory:
        """Return the saved memory; empty without a usable file.

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
        """Return the memory in the file's bytes; empty if they cannot be used.

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

    def last_read(self, content: bytes) -> Mapping[str, Any] | str | None:
        """The part of a guard in the file's bytes; a reason, in words, where the file cannot be used; None where the
        file has no such part."""
        try:
            document = parse_document(content)
            if document["version"] not in (1, 2):
                return f"it is of version {document['version']}"
            part = document.get("last_read")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            return f"it cannot be read: {error}"
        if part is None:
            return None
        if not isinstance(part, dict) or _is_deeper(part, LAST_READ_DEPTH_MAX):
            return "it cannot be read: last_read has another shape"
        return part

    def content(self, memory: Memory, last_read: Mapping[str, Any] | str | None = None) -> bytes:
        """Return the bytes of the file for a memory, and for the guard's part if it is usable."""
        part = {"last_read": last_read} if isinstance(last_read, Mapping) else {}
        document = {"version": 2, "node_id": self._node_id, **_document_of(memory), **part}
        return json.dumps(document, indent=2).encode() + b"\n"

    def unusable(self, error: OSError) -> StorageError | ConfigError:
        """Return the error for an unusable state directory. Missing permissions count as a mistake of configuration."""
        where = error.filename or self.path
        if error.errno in DENIED:
            return ConfigError(f"kjbod.state.dir={self.path.parent}: {error.strerror}")
        if error.errno in (errno.EINVAL, errno.EFBIG):  # of :func:`kjbod.files.read_file`
            return StartUpError(f"kjbod.state.dir={self.path.parent}: {where}: {error.strerror}: remove it")
        return StartUpError(
            f"kjbod.state.dir={self.path.parent}: {where}: {error.strerror}: it must be writable, outside log.dirs"
        )


def _memory_of(document: Mapping[str, Any]) -> Memory:
    """Return the memory in a file of version 1 (ids by path) or 2."""
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


def _is_deeper(value: object, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return inner is not None and (depth == 0 or any(_is_deeper(one, depth - 1) for one in inner))
