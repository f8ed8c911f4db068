"""Threads of a broker that wait for a lock or for a disk, as Java says."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_STACK_TIMEOUT_S: Final = 4.0
_FRAMES: Final = 3
_THREAD: Final = re.compile(r'^"([^"]+)"', re.MULTILINE)
_KAFKA: Final = re.compile(r"kafka|Replica|Fetcher|Log|raft|executor", re.IGNORECASE)


def blocked_frames(java: Path, pid: int, thread_dump: Path) -> list[str]:
    """A line for each thread of Kafka that waits for a lock or for a disk, by ``jstack``, whose whole answer is kept.

    Empty where there is no such tool, or the broker does not answer it: a thread that is stuck on a mapped file stops
    all of Java.
    """
    jstack = java.parent / "jstack"
    if not jstack.exists():
        return []
    try:
        done = subprocess.run(
            [str(jstack), "-l", str(pid)], capture_output=True, text=True, timeout=_STACK_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return ["no answer to jstack"]
    thread_dump.write_text(done.stdout)
    return blocked_in(done.stdout)


def blocked_in(dump: str) -> list[str]:
    """The threads of Java's dump that wait for a lock, or do something to a file: name and first frames of Kafka."""
    found = []
    for block in dump.split("\n\n"):
        named = _THREAD.search(block)
        if named is None or not _KAFKA.search(block):
            continue
        frames = re.findall(r"^\s+at (?:[\w.]+@[\w.]+/)?([\w.$]+)\(", block, re.MULTILINE)
        if "State: BLOCKED" in block or "Lock$" in _waiting(block) or _touches_file(frames):
            own = [frame for frame in frames if "kafka" in frame][:_FRAMES]
            found.append(f"{named.group(1)}: {' < '.join(_short(own or frames[:_FRAMES]))}")
    return found


def _waiting(block: str) -> str:
    line = re.search(r"parking to wait for.*", block)
    return line.group(0) if line else ""


def _touches_file(frames: Sequence[str]) -> bool:
    return any(frame.startswith(("sun.nio.ch.File", "java.io.File", "sun.nio.fs.Unix", "java.nio.Mapped"))
               for frame in frames[:6])  # fmt: skip


def _short(frames: Sequence[str]) -> list[str]:
    return [".".join(frame.split(".")[-2:]) for frame in frames]
