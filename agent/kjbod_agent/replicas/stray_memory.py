"""Why and since when each stray replica is one: a small file in ``kjbod.state.dir``, outside the disks.

It is only a memory: a stray whose entry is lost is listed as found at the start. Its methods block: they belong on a
thread. :class:`StrayWriter` takes them there, one at a time, the newest state last.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from kjbod.documents import int_of, parse_document, text_of
from kjbod.files import make_directories, write_atomically
from kjbod.ids import Uuid

STRAYS_NAME: Final = "strays.json"


class Note(NamedTuple):
    """What is remembered of one stray; ``since_ms`` is wall clock."""

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
        self._path = state_dir / STRAYS_NAME
        self._node_id = node_id

    def load(self) -> dict[tuple[Uuid, str], Note]:
        """What is remembered; empty where there is no file, or none that can be used."""
        try:
            document = parse_document(self._path.read_bytes())
            if document["version"] != 1 or document["node_id"] != self._node_id:
                return {}
            return {
                (Uuid.parse(entry["directory_id"]), text_of(entry["name"])): Note(
                    text_of(entry["reason"]), int_of(entry["since_ms"])
                )
                for entry in document["strays"]
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def save(self, notes: Notes) -> None:
        """Replace the file.

        Raises:
            OSError: it cannot be written; the old one is as it was.
        """
        strays = [
            {"directory_id": str(directory), "name": name, "reason": note.reason, "since_ms": note.since_ms}
            for (directory, name), note in sorted(notes.items())
        ]
        document = {"version": 1, "node_id": self._node_id, "strays": strays}
        make_directories(self._path.parent)
        write_atomically(self._path, json.dumps(document, indent=1).encode() + b"\n")


class StrayWriter:
    """Writes the newest state of a memory on a thread, one write at a time.

    Args:
        memory: the file.
        notes: gives what is to be remembered now.
        failed: gets the reason when it could not be written; the next change tries again.
    """

    def __init__(self, memory: StrayMemory, notes: Callable[[], Notes], failed: Callable[[OSError], None]) -> None:
        self._memory = memory
        self._notes = notes
        self._failed = failed
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """There is something new to remember."""
        self._changed.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            notes = dict(self._notes())
            try:
                await asyncio.to_thread(self._memory.save, notes)
            except OSError as error:
                self._failed(error)
