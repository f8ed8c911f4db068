"""Parse JAAS configuration: login modules with their options, from ``sasl.jaas.config`` or from a login configuration
file.

Java reads both with a ``java.io.StreamTokenizer``, each with its own rules. Sources: ``common.security.JaasConfig`` of
4.3.1 for the key (KIP-85), ``sun.security.provider.ConfigFile`` of Java 17 for the file. Rules of both: quoted text has
escapes and ends with its line at the latest. Outside of quotes, even a single ``/`` begins a comment; ``#`` does not. A
number is not a word, so it needs quotes. Options contain passwords, so messages never show the text.
"""

import dataclasses
import re
from collections.abc import Container, Iterator, Mapping

from msgspec import Struct

TEXT_CHARS_MAX = 64 * 1024
FLAGS = ("required", "requisite", "sufficient", "optional")
"""Values of ``LoginModuleControlFlag``."""

_TOKEN = r"""
[\x00-\x20]+ | /\*.*?(?:\*/|\Z) | /(?:[^*][^\r\n]*)?
| "(?P<double>(?:\\.|[^"\\\r\n])*)"?
| '(?P<single>(?:\\.|[^'\\\r\n])*)'?
| (?P<word>[a-zA-Z\xa0-\U0010ffffMARKS][a-zA-Z0-9.\-\xa0-\U0010ffffMARKS]*)
| (?P<sign>.)
"""
_ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_ESCAPES: Mapping[str, str] = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_END = "end"
_QUOTED = 'the value in double quotes unless it is a plain word, with a backslash before each " and backslash in it'


@dataclasses.dataclass(frozen=True, slots=True)
class LoginModule:
    """A login module (``AppConfigurationEntry``).

    Attributes:
        name: class name: ``org.apache.kafka.common.security.plain.PlainLoginModule``.
        flag: one of :data:`FLAGS`.
        options: values by option name.
    """

    name: str
    flag: str
    options: Mapping[str, str] = dataclasses.field(repr=False)


class _Syntax(Struct, frozen=True):
    """Rules of a tokenizer.

    Attributes:
        tokens: matches a token, or the text between two tokens.
        texts: kinds of tokens that can be a name or a value.
        expands: whether Java puts system properties into values.
    """

    tokens: re.Pattern[str]
    texts: tuple[str, ...]
    expands: bool


def _tokens(marks: str) -> re.Pattern[str]:
    return re.compile(_TOKEN.replace("MARKS", re.escape(marks)), re.DOTALL | re.VERBOSE)


_LOGIN = _Syntax(_tokens("$_"), texts=("word", "double", "single"), expands=False)
_FILE = _Syntax(_tokens("$_*"), texts=("word", "double"), expands=True)


def parse_login(text: str) -> tuple[LoginModule, ...]:
    """Parse the login modules of a ``sasl.jaas.config``: ``class flag option="value" ...;``, at least one.

    Raises:
        ValueError: the login module that is wrong, and what was expected.
    """
    tokens = _Tokens(text, _LOGIN)
    modules: list[LoginModule] = []
    while tokens.kind != _END:
        try:
            modules.append(_module(tokens))
        except ValueError as error:
            raise ValueError(f"login module {len(modules) + 1}: {error}") from None
    if not modules:
        raise ValueError('expected a login module: class required option="value";')
    return tuple(modules)


def parse_sections(text: str) -> Mapping[str, tuple[LoginModule, ...]]:
    """Parse the login modules of a login configuration file, by section: ``Name { class flag option="value" ...; };``.

    Raises:
        ValueError: the line that is wrong, and what was expected.
    """
    tokens = _Tokens(text, _FILE)
    sections: dict[str, tuple[LoginModule, ...]] = {}
    try:
        while tokens.kind != _END:
            name = _section_name(tokens, sections)
            sections[name] = tuple(_section(tokens))
    except ValueError as error:
        raise ValueError(f"line {tokens.line}: {error}") from None
    return sections


class _Tokens:
    """Tokens of a text. The current token is in ``kind`` and ``text``."""

    def __init__(self, source: str, syntax: _Syntax) -> None:
        if len(source) > TEXT_CHARS_MAX:
            raise ValueError(f"expected at most {TEXT_CHARS_MAX} characters")
        self.syntax = syntax
        self._source = source
        self._start = self._end = 0
        self.advance()

    @property
    def line(self) -> int:
        """Return the line number of the current token."""
        return self._source.count("\n", 0, self._start) + 1

    def advance(self) -> None:
        """Go to the next token. After the last token comes one of the kind ``end``."""
        self.kind, self.text = _END, ""
        while self.kind == _END and (match := self.syntax.tokens.match(self._source, self._end)):
            self._start, self._end = match.span()
            if match.lastgroup is not None:
                self.kind, self.text = match.lastgroup, match[match.lastgroup]
        if self.kind in ("double", "single"):
            self.text = _ESCAPE.sub(_unescaped, self.text)

    def is_sign(self, sign: str) -> bool:
        """Return whether the current token is this sign."""
        return self.kind == "sign" and self.text == sign

    def take_sign(self, sign: str, expected: str) -> None:
        """Require ``sign`` as the current token, and go past it."""
        if not self.is_sign(sign):
            raise ValueError(expected)
        self.advance()

    def take_text(self, expected: str) -> str:
        """Return a name or a value, and go past it."""
        if self.kind not in self.syntax.texts:
            raise ValueError(expected)
        text = self.text
        self.advance()
        return text


def _unescaped(match: re.Match[str]) -> str:
    escape = match[1]
    return chr(int(escape, 8)) if escape in "01234567" or len(escape) > 1 else _ESCAPES.get(escape, escape)


def _section_name(tokens: _Tokens, taken: Container[str]) -> str:
    if tokens.kind not in ("word", "double", "single"):  # Java accepts single quotes only here in a file
        raise ValueError("expected the name of a section; a comment begins with //")
    name = tokens.text
    if name in taken:
        raise ValueError("expected a different name for each section")
    tokens.advance()
    return name


def _section(tokens: _Tokens) -> Iterator[LoginModule]:
    tokens.take_sign("{", "expected { after the name of a section")
    while not tokens.is_sign("}"):
        yield _module(tokens)
    tokens.advance()
    tokens.take_sign(";", "expected ; after the } of a section")


def _module(tokens: _Tokens) -> LoginModule:
    name = tokens.take_text("expected the class of a login module")
    if not name:
        raise ValueError("expected the class of a login module, not an empty text")
    flags = f"expected {', '.join(FLAGS[:-1])} or {FLAGS[-1]} after the class"
    flag = tokens.take_text(flags).upper().lower()  # upper case first, as Java compares: a dotless i becomes an i
    if flag not in FLAGS:
        raise ValueError(flags)
    options: dict[str, str] = {}
    while not tokens.is_sign(";"):
        if tokens.kind == _END:
            raise ValueError("expected ; after its options")
        key = tokens.take_text(f'expected ; or name="value" after {len(options)} options, {_QUOTED}')
        options[key] = _value(tokens, f'option {len(options) + 1}: expected name="value", {_QUOTED}')
    tokens.advance()
    return LoginModule(name, flag, options)


def _value(tokens: _Tokens, expected: str) -> str:
    tokens.take_sign("=", expected)
    if tokens.syntax.expands and _is_expanded(tokens.text):
        raise ValueError("expected no ${...} in a value: kjbod knows no system properties of Java")
    return tokens.take_text(expected)


def _is_expanded(value: str) -> bool:
    """Return whether Java expands system properties in ``value``. It leaves ``${{...}}`` unchanged
    (``PropertyExpander``)."""
    at = value.find("${")
    while at >= 0 and value.startswith("${{", at):
        end = value.find("}}", at)
        at = value.find("${", end + 2) if end >= 0 else -1
    return at >= 0 and "}" in value[at:]
