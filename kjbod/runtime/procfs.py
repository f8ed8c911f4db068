"""Names as files of /proc write them, and what it tells of a process."""

import contextlib
from pathlib import Path

_ESCAPES = ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\043", b"#"), (b"\\134", b"\\"))


def unescape(field: bytes) -> str:
    """The name that a field of ``mountinfo``, ``mounts`` or ``swaps`` means (proc_pid_mountinfo(5)).

    Blank, tab, newline, ``#`` and backslash are written in octal, everything else as it is.
    """
    for escape, character in _ESCAPES:  # the backslash last, or it would make new escapes
        field = field.replace(escape, character)
    return field.decode("utf-8", "surrogateescape")


def process_sleep(pid: int) -> tuple[str, str]:
    """State letter and kernel function of a sleeping process from ``/proc``; empty text for what cannot be read."""
    state = wchan = ""
    with contextlib.suppress(OSError, IndexError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    with contextlib.suppress(OSError):
        wchan = Path(f"/proc/{pid}/wchan").read_text()
    return state, "" if wchan == "0" else wchan
