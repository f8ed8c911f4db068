"""Text that somebody else has written, for a line of ours."""


def printable(text: str, chars_max: int) -> str:
    """``text`` with escapes for what a terminal would obey, and cut behind ``chars_max`` characters."""
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return shown if len(shown) <= chars_max else f"{shown[:chars_max]}..."
