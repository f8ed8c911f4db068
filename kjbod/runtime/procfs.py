"""Names as files of /proc write them. Pure."""

_ESCAPES = ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\043", b"#"), (b"\\134", b"\\"))


def unescape(field: bytes) -> str:
    """The name that a field of ``mountinfo``, ``mounts`` or ``swaps`` means (proc_pid_mountinfo(5)).

    Blank, tab, newline, ``#`` and backslash are written in octal, everything else as it is.
    """
    for escape, character in _ESCAPES:  # the backslash last, or it would make new escapes
        field = field.replace(escape, character)
    return field.decode("utf-8", "surrogateescape")
