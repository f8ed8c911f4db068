"""Decode names in files of /proc. Pure."""

_ESCAPES = ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\043", b"#"), (b"\\134", b"\\"))


def unescape(field: bytes) -> str:
    """Return the name in a field of ``mountinfo``, ``mounts`` or ``swaps`` (proc_pid_mountinfo(5)).

    Space, tab, newline, ``#`` and backslash are written in octal, other characters unchanged.
    """
    for escape, character in _ESCAPES:  # the backslash last, because earlier it would create new escapes
        field = field.replace(escape, character)
    return field.decode("utf-8", "surrogateescape")
