"""Log segments: the end of a log, by offset index and batch headers, and checks of its record batches.

Sources: Kafka's ``LogFileUtils``, ``OffsetIndex`` (8 bytes an entry: relative offset and position, i32 big-endian; the
rest of a preallocated index is zero), ``RecordBatch`` (61 bytes of header for magic 2) and the message sets before it
(12 bytes of offset and size, then CRC and magic); ``DefaultRecordBatch.ensureValid`` (CRC-32C of all that follows the
CRC) and ``LegacyRecord.ensureValid`` (CRC-32 of all that follows it).

Used by workers, so it imports next to nothing: ``crc32c`` is the bare extension there, see ``zygote.py``.
"""

from __future__ import annotations

import binascii
import re
import struct
from collections.abc import Callable, Mapping

TYPE_CHECKING = False  # importing typing costs memory
if TYPE_CHECKING:
    from typing import Any

_SEGMENT = re.compile(r"([0-9]{20})\.log")
_ENTRY = struct.Struct(">iI")
_HEADER = struct.Struct(">qiib")
"""Base offset, length of what follows these 12 bytes, leader epoch or CRC, magic."""
HEADER_BYTES = 27
"""Bytes read of a batch: up to the offset delta of its last record."""
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LEAST_BYTES: Mapping[int, int] = {0: 14, 1: 22, 2: 49}
"""Minimum number of bytes after the first 12, by magic."""
INDEX_ENTRY_BYTES = 8
_CRC = struct.Struct(">I")
_CRC_AT = 17
"""Position of the CRC in a batch of magic 2. It covers the bytes after it."""
_LEGACY_CRC_AT = 12


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


class BatchCheck:
    """Walks from batch to batch of a segment that is read piece by piece, and compares their CRCs.

    It ends at the first thing that is no right batch: a wrong CRC, a header that cannot be one, an offset below those
    before, zeros of a preallocated rest. Whether that is a torn tail or damage the caller has to know.

    Args:
        base: base offset of the segment.

    Attributes:
        offset: the one behind the last right batch.
        position: in the file, behind the last right batch.
    """

    def __init__(self, base: int) -> None:
        self.offset = base
        self.position = 0
        self._ended = False
        self._rest = b""
        """Incomplete header at the end of the last piece."""
        self._left = 0
        """Bytes still missing of the batch in progress. The next five attributes are valid only while this is not 0."""
        self._bytes = 0
        self._crc = 0
        self._wanted = 0
        self._after = 0
        self._magic = 0

    @property
    def state(self) -> list[Any]:
        """State for :meth:`of` as plain values: offset and position first."""
        batch = [self._left, self._bytes, self._crc, self._wanted, self._after, self._magic]
        return [self.offset, self.position, self._ended, self._rest, *batch]

    @classmethod
    def of(cls, state: list[Any]) -> BatchCheck:
        """Return a check that continues from a :attr:`state`."""
        check = cls(state[0])
        check.position, check._ended, check._rest = state[1:4]
        check._left, check._bytes, check._crc, check._wanted, check._after, check._magic = state[4:]
        return check

    def feed(self, data: memoryview) -> None:
        """Check the next bytes of the file."""
        if self._ended:
            return
        at = 0
        if self._left:
            at = min(self._left, len(data))
            self._continue(data[:at])
            if self._left or self._ended:
                return
        if self._rest:
            data, self._rest = memoryview(self._rest + data), b""
        self._walk(data, at)

    def _continue(self, data: memoryview) -> None:
        """Add bytes to the batch in progress."""
        self._crc = _crc(self._magic, data, self._crc)
        self._left -= len(data)
        if not self._left:
            self._take(self._crc)

    def _take(self, crc: int) -> None:
        """Compare the CRC of a complete batch."""
        if crc != self._wanted:
            self._ended = True
        else:
            self.offset = self._after
            self.position += self._bytes

    def _walk(self, data: memoryview, at: int) -> None:
        """Check all complete batches, and begin the next batch."""
        size = len(data)
        while size - at >= _HEADER.size and not self._ended:
            first, length, crc, magic = _HEADER.unpack_from(data, at)
            least = _LEAST_BYTES.get(magic)
            if magic == 2 and size - at < HEADER_BYTES:
                break
            covered, delta, crc = at + _LEGACY_CRC_AT + 4, 0, crc & 0xFFFFFFFF
            if magic == 2:
                covered, crc = at + _CRC_AT + 4, _CRC.unpack_from(data, at + _CRC_AT)[0]
                delta = _LAST_OFFSET_DELTA.unpack_from(data, at + 23)[0]
            if least is None or length < least or first < self.offset or delta < 0:
                self._ended = True
                return
            self._bytes, self._wanted, self._after, self._magic = 12 + length, crc, first + delta + 1, magic
            end = at + self._bytes
            found = _crc(magic, data[covered : min(end, size)], 0)
            if end > size:
                self._left, self._crc = end - size, found
                return
            self._take(found)
            at = end
        self._rest = bytes(data[at : at + HEADER_BYTES])


def _crc(magic: int, data: memoryview, before: int) -> int:
    if magic != 2:
        return binascii.crc32(data, before)
    import crc32c  # where it is the bare extension: the daemon, which imports this module too, has no use for it

    found: int = crc32c.crc32c(data, before)
    return found
