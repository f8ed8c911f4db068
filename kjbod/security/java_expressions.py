"""Translate regular expressions and replacements of Java (``java.util.regex.Pattern``, ``Matcher.appendReplacement``)
to Python. An expression that Python would read differently is refused: a different reading would give a client another
client's rights."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

LINE_ENDS: Final = r"\n\r\x85\u2028\u2029"
"""Line ends of Java, for a character class."""
NUMBER_DIGITS_MAX: Final = 9
"""Maximum digits of a group number."""
_SAME: Final = r"\\[tnrfadDsSwW] | \\x[0-9a-fA-F]{2} | \\u(?![dD][89a-fA-F])[0-9a-fA-F]{4} | \\[^a-zA-Z0-9]"
"""Escapes that Java and Python read alike, inside and outside of a class."""
_TOKEN: Final = re.compile(
    rf"""
    (?P<same> {_SAME} | \\[1-9](?![0-9]) | \\A | \((?!\?) | \(\?(?:[:=!]|<[=!]|i:) | [^\\\[(*+?{{$.]
      | [*+?](?:\?|(?!\+)) | \{{[0-9]{{1,9}}(?:,[0-9]{{0,9}})?\}}(?![+?]) )
    | (?P<flags> \A\(\?i\) )
    | (?P<dot> \. )
    | (?P<dollar> \$ | \\Z )
    | (?P<end> \\z )
    | \(\?<(?P<name>[a-zA-Z][a-zA-Z0-9]*)>
    | \\k<(?P<named>[a-zA-Z][a-zA-Z0-9]*)>
    | \[(?P<negated>\^?)(?P<members>(?:{_SAME} | [^\\\[\]])+)\]
    """,
    re.VERBOSE | re.DOTALL,
)
"""Tokens of an expression. Possessive quantifiers, atomic groups and lazy numbers are left out: with a group that can
be empty they differ. ``\\b`` is left out because the end of a word depends on the version of Java."""
_MEMBER: Final = re.compile(rf"(?P<kind>\\[dDsSwW])-? | (?P<same>{_SAME} | -) | (?P<other>.)", re.VERBOSE | re.DOTALL)
_DOUBLED: Final = re.compile(r"&&|--")
_DOLLAR: Final = r"(?=(?:\r\n|(?<!\r)\n|[\r\x85\u2028\u2029])?\Z)"


def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a regular expression of Java for Python.

    Raises:
        ValueError: Python has no equivalent.
    """
    translated: list[str] = []
    at = 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:
            raise ValueError(f"expected an expression that Python reads as Java does, not {pattern[at : at + 3]} in it")
        translated.append(_translated(token))
        at = token.end()
    try:
        return re.compile("".join(translated), re.ASCII)
    except re.error as error:
        raise ValueError(f"expected an expression that Python reads as Java does: {error.msg}") from None
    except (OverflowError, RecursionError):
        raise ValueError("expected a smaller expression") from None


def _translated(token: re.Match[str]) -> str:
    match token.lastgroup:
        case "dot":
            return f"[^{LINE_ENDS}]"
        case "dollar":
            return _DOLLAR
        case "end":
            return r"\Z"
        case "name":
            return f"(?P<{token['name']}>"
        case "named":
            return f"(?P={token['named']})"
        case "members":
            return f"[{token['negated']}{_members(token['members'])}]"
        case _:
            return token[0]


def _members(members: str) -> str:
    """Translate the inside of a character class. A ``-`` after a nested class, and ``&``, are literal characters."""
    if _DOUBLED.search(members):
        raise ValueError("expected an expression that Python reads as Java does, without && or -- between [ and ]")
    parts = []
    for member in _MEMBER.finditer(members):
        if kind := member["kind"]:
            parts.append(kind + member[0].removeprefix(kind).replace("-", r"\-"))
        else:
            parts.append(member["same"] or re.escape(member["other"]))
    return "".join(parts)


# ---- Replacements

_PART: Final = re.compile(
    r"\\(?P<escaped>.) | \$(?P<number>[0-9]+) | \$\{(?P<name>[a-zA-Z][a-zA-Z0-9]*)\} | (?P<text>[^\\$]+)",
    re.VERBOSE | re.DOTALL,
)


def replacement(text: str, pattern: re.Pattern[str]) -> Iterator[str | int]:
    """Yield the parts of a replacement (``Matcher.appendReplacement``): texts and group numbers.

    Raises:
        ValueError: the replacement refers to a group that ``pattern`` does not have.
    """
    at = 0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None:
            raise ValueError("expected a digit or {name} after $ in the replacement, and a character after a backslash")
        at = part.end()
        if part["number"]:
            number, digits = _group(part["number"], pattern.groups)
            yield number
            at = part.start("number") + digits
        elif part["name"]:
            if part["name"] not in pattern.groupindex:
                raise ValueError(f"expected the name of a group of the pattern, not ${{{part['name']}}}")
            yield pattern.groupindex[part["name"]]
        else:
            yield part["escaped"] or part["text"]


def _group(text: str, groups: int) -> tuple[int, int]:
    """Return a group number and its count of digits: as many digits as form the number of an existing group."""
    digits = 1
    while digits < len(text) and int(text[: digits + 1]) <= groups:
        digits += 1
    number = int(text[:digits])
    if number > groups:
        raise ValueError(f"expected the number of a group of the pattern, not ${number}")
    return number, digits


def replaced(text: str, pattern: re.Pattern[str], parts: Sequence[str | int], *, first: bool = False) -> str:
    """Replace all matches in a text, or the first one, with the parts from :func:`replacement` (``Matcher.replaceAll``,
    ``replaceFirst``). Python's ``sub`` continues differently after an empty match."""
    found: list[str] = []
    start = end = 0
    while start <= len(text) and (match := pattern.search(text, start)):
        found.append(text[end : match.start()])
        found.extend(each if isinstance(each, str) else match[each] or "" for each in parts)
        end = match.end()
        start = len(text) + 1 if first else end + (match.start() == end)
    return "".join(found) + text[end:]
