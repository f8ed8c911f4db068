"""Where a log ends, as told by its last segment: offset index and batch headers.

Sources: Kafka's ``LogFileUtils``, ``OffsetIndex`` (8 bytes an entry: relative offset and position, i32 big-endian; the
rest of a preallocated index is zero), ``RecordBatch`` (61 bytes of header for magic 2) and the message sets before it
(12 bytes of offset and size, then CRC and magic).

Used by workers, so it imports next to nothing.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

_SEGMENT = re.compile(r"([0-9]{20})\.log")
_ENTRY = struct.Struct(">iI")
_HEADER = struct.Struct(">qiib")
"""Base offset, length of what follows these 12 bytes, leader epoch or CRC, magic."""
HEADER_BYTES = 27
"""As much of a batch as is read: up to the offset delta of its last record."""
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LEAST_BYTES = {0: 14, 1: 22, 2: 49}
"""What follows the first 12 bytes, at least, by magic."""
INDEX_ENTRY_BYTES = 8


def segment_base(file: str) -> int | None:
    """Base offset of a segment by the name of its file; None for other files."""
    found = _SEGMENT.fullmatch(file)
    return int(found.group(1)) if found is not None else None


def last_indexed(size: int, read: Callable[[int, int], bytes]) -> int:
    """Position, in the segment, of the last entry of an offset index; 0 when there is none.

    Args:
        size: of the index file in bytes.
        read: offset and length to bytes.
    """
    # Positions only grow, and no batch but the first, which has no entry, is at 0: behind the last entry are zeros.
    low, high, position = 0, size // INDEX_ENTRY_BYTES, 0
    while low < high:
        middle = (low + high) // 2
        entry = read(middle * INDEX_ENTRY_BYTES, INDEX_ENTRY_BYTES)
        found = _ENTRY.unpack(entry)[1] if len(entry) == INDEX_ENTRY_BYTES else 0
        if found:
            position, low = found, middle + 1
        else:
            high = middle
    return position


class LogEnd:
    """Walks from batch to batch up to the last complete one.

    Args:
        base: base offset of the segment.
        size: of its file in bytes.
        read: offset and length to bytes.
        position: of the first batch to look at.

    Attributes:
        offset: the one behind the last complete batch so far; None when what is there is no log.
        position: of the next batch.
        done: whether the end was reached.
        found: whether a complete batch was seen.
    """

    def __init__(self, base: int, size: int, read: Callable[[int, int], bytes], position: int = 0) -> None:
        self.offset: int | None = base
        self.position = position
        self.done = False
        self.found = False
        self._size = size
        self._read = read

    def advance(self, batches: int) -> None:
        """Look at so many more batches at most."""
        for _ in range(batches):
            if self.done:
                return
            self._look()

    def _look(self) -> None:
        header = self._read(self.position, HEADER_BYTES)
        if len(header) < _HEADER.size or not any(header):  # the end, or a preallocated rest
            self.done = True
            return
        first, length, _, magic = _HEADER.unpack_from(header)
        least = _LEAST_BYTES.get(magic)
        if least is None or length < least or first < (self.offset or 0):
            if not self.found:
                self.offset = None
            self.done = True
            return
        if self.position + 12 + length > self._size:
            self.done = True
            return
        delta = _LAST_OFFSET_DELTA.unpack_from(header, 23)[0] if magic == 2 else 0
        if delta < 0:
            self.offset, self.done = None, True
            return
        self.offset = first + delta + 1
        self.position += 12 + length
        self.found = True
