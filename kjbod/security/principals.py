"""Principals of clients from their certificates: the distinguished name as Java writes it, and
``ssl.principal.mapping.rules`` (KIP-371; ``SslPrincipalMapper`` of 4.3.1, ``X500Principal.getName``, RFC 2253).

A rule is a regular expression of Java (:mod:`kjbod.security.java_expressions`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from kjbod.security.java_expressions import LINE_ENDS, NUMBER_DIGITS_MAX, compiled, replaced, replacement

# ---- Rules

DEFAULT: Final = "DEFAULT"
"""The rule that keeps the distinguished name unchanged, and Kafka's default of the key."""
_REFERENCE: Final = re.compile(r"\$(?P<number>[0-9]+)")
_SPLITTER: Final = re.compile(
    rf"""
    \s* (?P<rule> DEFAULT
      | RULE: (?:\\[^{LINE_ENDS}]|[^\\/])* / (?:\\[^{LINE_ENDS}]|[^\\/])* / [LU]? [^{LINE_ENDS}]*?
      | [^{LINE_ENDS}]*? )
    \s* (?:,\s* | (?=[{LINE_ENDS}]?\Z))
    """,
    re.ASCII | re.VERBOSE,
)
"""A rule and the comma after it. Expressions may contain commas too: a rule ends at its first possible end."""
_RULE: Final = re.compile(
    r"RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<fold>[LU]?)", re.ASCII
)
_TRIMMED: Final = "".join(map(chr, range(0x21)))
"""Characters that ``String.trim`` removes."""
_EXPECTED: Final = "expected DEFAULT or RULE:pattern/replacement/, with L or U after it for lower or upper case"


class Rule(Struct, frozen=True):
    """A rule of ``ssl.principal.mapping.rules``.

    Attributes:
        pattern: expression that must match the whole distinguished name; None: the rule is ``DEFAULT``.
        replacement: replacement of each match: texts, and the numbers of groups.
        fold: ``L`` or ``U``: to lower or upper case; empty: unchanged.
    """

    pattern: re.Pattern[str] | None = None
    replacement: tuple[str | int, ...] = ()
    fold: str = ""


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Parse the rules, in the order in which they are tried.

    Raises:
        ValueError: the rule that is wrong, and what was expected.
    """
    found = (match["rule"] for match in _SPLITTER.finditer(text.strip(_TRIMMED)))
    return tuple(_rule(each) for each in found if each)


def _rule(text: str) -> Rule:
    if text == DEFAULT:
        return Rule()
    parts = _RULE.fullmatch(text)
    if parts is None:
        raise ValueError(f"{text}: {_EXPECTED}")
    try:
        pattern = compiled(parts["pattern"])
        return Rule(
            pattern,
            tuple(replacement(_with_literal_references(parts["replacement"], pattern.groups), pattern)),
            parts["fold"],
        )
    except ValueError as error:
        raise ValueError(f"{text}: {error}") from None


def principal_name(dn: str, rules: Sequence[Rule]) -> str:
    """Return the name of a distinguished name by the first rule that applies.

    Raises:
        ValueError: no rule applies (``NoMatchingRule``).
    """
    for rule in rules:
        if rule.pattern is None:
            return dn
        if rule.pattern.fullmatch(dn):
            name = replaced(dn, rule.pattern, rule.replacement)
            return name.lower() if rule.fold == "L" else name.upper() if rule.fold == "U" else name
    raise ValueError(f"no rule of ssl.principal.mapping.rules applies to {dn!r}")


def _with_literal_references(text: str, groups: int) -> str:
    """Return the replacement with a backslash before references that Kafka treats as text: ``$4`` with only 3 groups.

    From the second reference on, Kafka places the backslash as if it had not added one before.
    """
    escaped = text
    for reference in _REFERENCE.finditer(text) if groups else ():
        number = reference["number"]
        if len(number) > NUMBER_DIGITS_MAX:
            raise ValueError(f"expected at most {NUMBER_DIGITS_MAX} digits after $ in the replacement")
        index = int(number)
        while index > groups and index >= 10:
            index //= 10
        if not number.startswith("0") and index > groups:
            escaped = f"{escaped[: reference.start()]}\\{escaped[reference.start() :]}"
    return escaped


# ---- Distinguished names

_KEYWORDS: Final[Mapping[str, str]] = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""Attributes with a keyword in RFC 2253; other attributes are written by OID."""
_CHARSETS: Final[Mapping[int, str]] = {
    0x0C: "utf-8",  # UTF8String
    0x13: "ascii",  # PrintableString
    0x14: "latin-1",  # T61String
    0x16: "ascii",  # IA5String
    0x1B: "latin-1",  # GeneralString
    0x1E: "utf-16-be",  # BMPString
}
"""Tags of values that are written as text; other values are written in DER."""
_ESCAPED: Final = re.compile(r'[,=+<>#;"\\]')
_BLANKS: Final = " \r"
_VERSION: Final = 0xA0
_SUBJECT: Final = 4
"""Position of the subject in a certificate without its version: serial number, algorithm, issuer, validity, subject."""
_LENGTH_BYTES_MAX: Final = 4
_NO_CERTIFICATE: Final = "expected a certificate in DER"


class _Value(Struct, frozen=True):
    """A DER value: its tag, its content, and all of its bytes."""

    tag: int
    content: bytes
    der: bytes


def _values(data: bytes) -> Iterator[_Value]:
    """Yield consecutive values.

    Raises:
        ValueError: a value ends early, or has a length or a tag that no certificate needs.
    """
    at = 0
    while at < len(data):
        header = data[at : at + 2]
        start = at + 2
        length = header[-1]
        if length >= 0x80:
            size = length - 0x80
            length = int.from_bytes(data[start : start + size], "big") if size <= _LENGTH_BYTES_MAX else len(data)
            start += size
        if len(header) < 2 or start + length > len(data):
            raise ValueError(_NO_CERTIFICATE)
        yield _Value(header[0], data[start : start + length], data[at : start + length])
        at = start + length


def rfc2253(certificate_der: bytes) -> str:
    """Return the distinguished name of a certificate's subject as ``X500Principal.getName()`` of Java 25 writes it.

    The texts of the cryptography library differ from it: Java escapes ``=`` and ``#`` everywhere, knows fewer keywords,
        and writes DER for an attribute without a keyword. Java 17 writes nonsense for a BMPString and for a T61String
        beyond ASCII. A text that does not decode is refused; Java writes a substitute character.

    Raises:
        ValueError: the bytes are no certificate.
    """
    certificate = _first(certificate_der)
    fields = [each for each in _values(_first(certificate.content).content) if each.tag != _VERSION]
    if len(fields) <= _SUBJECT:
        raise ValueError(_NO_CERTIFICATE)
    names = [
        "+".join(_attribute(each.content) for each in _values(relative.content))
        for relative in _values(fields[_SUBJECT].content)
    ]
    return ",".join(reversed(names))


def _first(data: bytes) -> _Value:
    first = next(_values(data), None)
    if first is None:
        raise ValueError(_NO_CERTIFICATE)
    return first


def _attribute(content: bytes) -> str:
    """Return one attribute as ``CN=alice``; with its value in DER if it has no keyword or is no text."""
    parts = tuple(_values(content))
    if len(parts) != 2:
        raise ValueError(_NO_CERTIFICATE)
    kind, value = parts
    oid = _oid(kind.content)
    keyword = _KEYWORDS.get(oid)
    charset = _CHARSETS.get(value.tag)
    if keyword is None or charset is None:
        return f"{keyword or oid}=#{value.der.hex()}"
    try:
        return f"{keyword}={_escaped(value.content.decode(charset))}"
    except UnicodeDecodeError:
        raise ValueError(f"expected a certificate whose {keyword} is the text that it says it is") from None


def _escaped(text: str) -> str:
    text = _ESCAPED.sub(r"\\\g<0>", text).replace("\0", r"\00")
    middle = text.strip(_BLANKS)
    start = len(text) - len(text.lstrip(_BLANKS))
    before, after = text[:start], text[start + len(middle) :]
    return f"{_each_escaped(before)}{middle}{_each_escaped(after)}"


def _each_escaped(text: str) -> str:
    return "".join(f"\\{character}" for character in text)


def _oid(content: bytes) -> str:
    """Return the dotted form of an object identifier."""
    arcs = [0]
    for byte in content:
        arcs[-1] = arcs[-1] << 7 | byte & 0x7F
        if byte < 0x80:
            arcs.append(0)
    if len(arcs) == 1 or content[-1] >= 0x80:
        raise ValueError(_NO_CERTIFICATE)
    first = min(arcs[0] // 40, 2)
    return ".".join(map(str, (first, arcs[0] - 40 * first, *arcs[1:-1])))
