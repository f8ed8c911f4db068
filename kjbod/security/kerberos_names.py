"""Kerberos principals, and their short names by ``sasl.kerberos.principal.to.local.rules`` (``KerberosName``,
``KerberosShortNamer``, ``KerberosRule`` of 4.3.1; MIT's ``auth_to_local``).

============================================  =================================================================
rule                                          applies to
============================================  =================================================================
``DEFAULT``                                   names of the default realm: the first part
``RULE:[n:text](expression)s/from/to/g/L``    names of n parts, where ``text`` with ``$0`` (realm), ``$1``, ``$2``
                                              matches the whole expression, if there is one; then the first match
                                              of ``from`` (``g``: each) becomes ``to``, in lower case (``U``: upper)
============================================  =================================================================

The first rule that applies counts. A name is refused if no rule applies, or if the result still has a realm or a second
part. kjbod checks the references of a rule when it reads the rule; Kafka does when it applies the rule.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from kjbod.security.java_expressions import NUMBER_DIGITS_MAX, compiled, replaced, replacement

KEY: Final = "sasl.kerberos.principal.to.local.rules"
DEFAULT: Final = "DEFAULT"
"""Kafka's default of the key."""
_NAME: Final = re.compile(r"(?P<first>[^/@]*)(?:/(?P<second>[^/@]*))?@(?P<realm>[^/@]*)")
_RULE: Final = re.compile(
    r"RULE:\[(?P<parts>[0-9]+):(?P<text>[^\]]*)\](?:\((?P<match>[^)]*)\))?"
    r"(?P<replaces>s/(?P<from>[^/]*)/(?P<to>[^/]*)/(?P<each>g)?)?/?(?P<fold>[LU])?"
)
_PIECE: Final = re.compile(r"\$(?P<number>[0-9]+)|(?P<text>[^$]+)")
_COMMA: Final = re.compile(r"[ \t\n\x0b\f\r]*,[ \t\n\x0b\f\r]*")
_NOT_SIMPLE: Final = re.compile(r"[/@]")
_EXPECTED: Final = "expected DEFAULT or RULE:[n:text](expression)s/from/to/g, with /L or /U after it"


class Substitution(Struct, frozen=True):
    """``s/from/to/`` of a rule; ``first``: only the first match is replaced."""

    pattern: re.Pattern[str]
    parts: tuple[str | int, ...]
    first: bool


class KerberosRule(Struct, frozen=True):
    """A rule of ``sasl.kerberos.principal.to.local.rules``.

    Attributes:
        parts: number of parts of the names to which the rule applies; None: the rule is ``DEFAULT``.
        text: texts, and the numbers of the name's parts to insert; 0 is the realm.
        match: expression that the text must match; None: any text.
        substitution: substitution in the text.
        fold: ``L`` or ``U``: to lower or upper case; empty: unchanged.
    """

    parts: int | None = None
    text: tuple[str | int, ...] = ()
    match: re.Pattern[str] | None = None
    substitution: Substitution | None = None
    fold: str = ""


def parse_rules(text: str) -> tuple[KerberosRule, ...]:
    """Parse the rules, in the order in which they are tried.

    Raises:
        ValueError: the rule that is wrong, and what was expected.
    """
    return tuple(_rule(each) for each in _COMMA.split(text)) if text else ()


def short_name(name: str, rules: Sequence[KerberosRule], default_realm: str) -> str:
    """Return the short name of a principal by the first rule that applies: ``kafka`` for ``kafka/c1@EXAMPLE.COM``.

    Raises:
        ValueError: no rule applies, or the name is not a principal.
    """
    parts = _NAME.fullmatch(name)
    if parts is None and "@" in name:
        raise ValueError(f"expected the name of a Kerberos principal, not {name!r}")
    if parts is None:
        return name
    words = [parts["realm"], parts["first"], *([] if parts["second"] is None else [parts["second"]])]
    for rule in rules:
        found = _applied(rule, words, default_realm)
        if found is None:
            continue
        if _NOT_SIMPLE.search(found):
            raise ValueError(f"a rule of {KEY} makes {found!r} of {name!r}: expected a name without / and @")
        return found.lower() if rule.fold == "L" else found.upper() if rule.fold == "U" else found
    raise ValueError(f"no rule of {KEY} applies to {name!r}")


def _applied(rule: KerberosRule, words: Sequence[str], default_realm: str) -> str | None:
    if rule.parts is None:
        return words[1] if words[0] == default_realm else None
    if len(words) - 1 != rule.parts:
        return None
    text = "".join(each if isinstance(each, str) else words[each] for each in rule.text)
    if rule.match is not None and rule.match.fullmatch(text) is None:
        return None
    to = rule.substitution
    return text if to is None else replaced(text, to.pattern, to.parts, first=to.first)


def _rule(text: str) -> KerberosRule:
    if text == DEFAULT:
        return KerberosRule()
    found = _RULE.fullmatch(text)
    if found is None or len(found["parts"]) > NUMBER_DIGITS_MAX:
        raise ValueError(f"{text}: {_EXPECTED}")
    try:
        count = int(found["parts"])
        match = None if found["match"] is None else compiled(found["match"])
        return KerberosRule(
            count, tuple(_pieces(found["text"], count)), match, _substitution(found), found["fold"] or ""
        )
    except ValueError as error:
        raise ValueError(f"{text}: {error}") from None


def _substitution(found: re.Match[str]) -> Substitution | None:
    if found["replaces"] is None:
        return None
    pattern = compiled(found["from"])
    return Substitution(pattern, tuple(replacement(found["to"], pattern)), first=found["each"] is None)


def _pieces(text: str, count: int) -> Iterator[str | int]:
    """Yield the texts and part numbers of a rule's text (``KerberosRule.replaceParameters``).

    Raises:
        ValueError: the rule refers to a part that no such name has.
    """
    at = 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None or len(piece["number"] or "") > NUMBER_DIGITS_MAX:
            raise ValueError("expected a number after $ between [ and ]")
        at = piece.end()
        number = int(piece["number"] or 0)
        if number > count:
            raise ValueError(f"expected $0 to ${count}, not ${number}, between [ and ]")
        yield piece["text"] or number
