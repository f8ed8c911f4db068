"""Kafka's checkpoint files of offsets: recovery point, log start, high watermark, cleaner; one of each per directory.

Format (``server.log.CheckpointFile``, ``OffsetCheckpointFile``): a line with the version, 0; a line with the number of
entries; then ``<topic> <partition> <offset>``, each line ended by LF, in no order. An empty file has no entries: Kafka
makes the cleaner's so. Anything else cannot be read, and Kafka then starts from nothing.

Used by workers, so it imports next to nothing.
"""

from __future__ import annotations

import re

RECOVERY_POINT = "recovery-point-offset-checkpoint"
LOG_START = "log-start-offset-checkpoint"
HIGH_WATERMARK = "replication-offset-checkpoint"
CLEANER = "cleaner-offset-checkpoint"
CHECKPOINT_FILES = (RECOVERY_POINT, LOG_START, HIGH_WATERMARK, CLEANER)

_NUMBER = re.compile(rb"[+-]?[0-9]{1,19}")

Key = tuple[bytes, int]
"""Topic, as bytes in the file, and partition."""


def parse(content: bytes) -> list[tuple[Key, bytes]] | None:
    """Return every entry with its line, in order; None: Kafka could not read the file."""
    if not content:
        return []
    lines = content.splitlines()
    if len(lines) < 2 or _number(lines[0]) != 0 or _number(lines[1]) != len(lines) - 2:
        return None
    entries: list[tuple[Key, bytes]] = []
    for line in lines[2:]:
        fields = line.split()
        if len(fields) != 3:
            return None
        partition = _number(fields[1])
        if partition is None or _number(fields[2]) is None:
            return None
        entries.append(((fields[0], partition), line))
    return entries


def _number(text: bytes) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def offsets(content: bytes) -> dict[tuple[str, int], int] | None:
    """Return the last offset by (topic, partition); None: Kafka could not read the file."""
    entries = parse(content)
    if entries is None:
        return None
    return {
        (topic.decode("utf-8", "surrogateescape"), number): int(line.split()[2]) for (topic, number), line in entries
    }


def changed(content: bytes | None, changes: list[tuple[str, int, int | None]]) -> bytes | None:
    """Return the file with offsets set or removed (None); other lines stay unchanged.

    Args:
        content: the file now; None when there is none.
        changes: topic, partition, offset.

    Returns:
        The new content; None when there is nothing to write: nothing changes, or it cannot be read.
    """
    entries = parse(content or b"")
    if entries is None:
        return None
    wanted = {(topic.encode("utf-8", "surrogateescape"), partition): offset for topic, partition, offset in changes}
    lines: list[bytes] = []
    for key, line in entries:
        if key not in wanted:
            lines.append(line)
    before = {key: int(line.split()[2]) for key, line in entries}
    if all(before.get(key) == offset for key, offset in wanted.items()):
        return None
    lines += [b"%s %d %d" % (*key, offset) for key, offset in wanted.items() if offset is not None]
    return b"0\n%d\n" % len(lines) + b"".join(line + b"\n" for line in lines)
