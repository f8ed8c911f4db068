"""Make untrusted text safe for a line of output."""


def printable(text: str, chars_max: int) -> str:
    """Return ``text`` with control characters as escapes, cut after ``chars_max`` characters."""
    shown = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return shown if len(shown) <= chars_max else f"{shown[:chars_max]}..."
