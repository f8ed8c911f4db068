"""Memory of why and since when each stray replica is one: a small file in ``kjbod.state.dir``, outside the disks.

It is only a memory: a stray whose entry is lost is listed as found at the start. :class:`StrayWriter` has it written,
the newest state last, by whoever may wait for the disk that it lies on.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from kjbod.documents import int_of, parse_document, text_of
from kjbod.files import make_directories, read_file, write_atomically
from kjbod.ids import Uuid
from kjbod_host.files.file_worker import FILE_BYTES_MAX

STRAYS_NAME: Final = "strays.json"


class Note(NamedTuple):
    """Memory of one stray; ``since_ms`` is wall clock."""

    reason: str
    since_ms: int


Notes = Mapping[tuple[Uuid, str], Note]
"""By directory id and name of the stray."""


class StrayMemory:
    """The file.

    Args:
        state_dir: ``kjbod.state.dir``; made when it is missing.
        node_id: another node's memory is not used.
    """

    def __init__(self, state_dir: Path, node_id: int) -> None:
        self.path = state_dir / STRAYS_NAME
        self._node_id = node_id

    def load(self) -> dict[tuple[Uuid, str], Note]:
        """Notes in the file; empty where there is no file, or none that can be used. Blocks."""
        try:
            return self.parse(read_file(self.path, bytes_max=FILE_BYTES_MAX))
        except OSError:
            return {}

    def parse(self, content: bytes) -> dict[tuple[Uuid, str], Note]:
        """Parse the notes in the file's bytes; empty if they cannot be used."""
        try:
            document = parse_document(content)
            if document["version"] != 1 or document["node_id"] != self._node_id:
                return {}
            return {
                (Uuid.parse(entry["directory_id"]), text_of(entry["name"])): Note(
                    text_of(entry["reason"]), int_of(entry["since_ms"])
                )
                for entry in document["strays"]
            }
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}

    def save(self, notes: Notes) -> None:
        """Replace the file. Blocks.

        Raises:
            OSError: it cannot be written; the old one is as it was.
        """
        make_directories(self.path.parent)
        write_atomically(self.path, self.content(notes))

    def content(self, notes: Notes) -> bytes:
        """Bytes of the file for these notes."""
        strays = [
            {"directory_id": str(directory), "name": name, "reason": note.reason, "since_ms": note.since_ms}
            for (directory, name), note in sorted(notes.items())
        ]
        document = {"version": 1, "node_id": self._node_id, "strays": strays}
        return json.dumps(document, indent=1).encode() + b"\n"


WriteFile = Callable[[Path, bytes], Awaitable[None]]
"""Replaces a file, off the event loop."""


class StrayWriter:
    """Has the newest state of a memory written, one write at a time.

    Args:
        memory: the file.
        write: writes it.
        notes: gives what is to be remembered now.
        failed: gets the reason when the file could not be written; the next change tries again.
    """

    def __init__(
        self,
        memory: StrayMemory,
        write: WriteFile,
        notes: Callable[[], Notes],
        failed: Callable[[OSError], None],
    ) -> None:
        self._memory = memory
        self._write = write
        self._notes = notes
        self._failed = failed
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Ask for a write, because the notes have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Write changed notes until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._write(self._memory.path, self._memory.content(self._notes()))
            except OSError as error:
                self._failed(error)
