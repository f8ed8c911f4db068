"""Queries by their text alone: what may go through Spark Connect, whose client has no parser.

Only the words are looked at, with texts and comments out of the way, and what is not clear is refused: this is more
strict than :mod:`kjbod.fleet.upkeep.query_check`, which has Spark's own plan. What it keeps out are statements that
change something, and queries that run a program, call Java or read files by their path. The server decides over the
rest: which tables and functions there are, and who may read them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.upkeep.query_check import CALLS_JAVA, TABLE_FUNCTIONS
from kjbod.output import safe

_TOKEN = re.compile(
    r"""
    (?P<space>  \s+ | --(?:\\\n|[^\r\n])* | /\*(?!\+)(?:(?!/\*|\*/).)*\*/ )
  | (?P<text>   '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" )
  | (?P<quoted> `(?:[^`]|``)*` )
  | (?P<word>   [A-Za-z0-9_]+ )
  | (?P<unclear> /\* | ['"`$] | [^\x00-\x7f] )
  | (?P<sign>   . )
    """,
    re.VERBOSE | re.DOTALL,
)
_BEGIN = frozenset({"select", "with", "values", "("})
_CHANGE = frozenset({"insert", "into", "overwrite", "delete", "update", "merge"})
_FORMATS = frozenset(
    {"text", "parquet", "csv", "json", "orc", "binaryfile", "avro", "delta"}
    | {"xml", "jdbc", "hive", "iceberg", "hudi", "kafka", "image", "libsvm", "protobuf"}
)
"""First parts of names that Spark takes for files, or for what is elsewhere."""
_BEFORE_RELATION = frozenset({"from", "join", "table", "stream", "lateral"})
_AFTER_FROM = frozenset(
    {"where", "group", "having", "order", "sort", "cluster", "distribute", "limit", "offset", "window", "qualify"}
    | {"select", "union", "intersect", "except", "minus", "on"}
)
"""Words after which a comma does not go on with another relation. After ``ON`` it may: the next name is looked at."""


@dataclass(frozen=True, slots=True)
class Token:
    """A word (small), a name between backquotes, a text, or a sign."""

    kind: str
    said: str

    @property
    def is_name(self) -> bool:
        """Whether it can be a part of a name; a server may take texts between double quotes for such."""
        return self.kind in ("word", "quoted", "text")


_END = Token("sign", "")


def check_text(sql: str) -> None:
    """Refuse what is not clearly one query that looks at tables alone.

    Raises:
        FleetError: it is not.
    """
    tokens = _tokens(sql)
    if not tokens or tokens[0].said not in _BEGIN or any(t.kind == "word" and t.said in _CHANGE for t in tokens):
        raise FleetError("only queries (SELECT, WITH, VALUES): a lake is changed by the other commands")
    if Token("sign", ";") in tokens:
        raise FleetError("one query at a time: leave out what is after the semicolon")
    for token, after in zip(tokens, (*tokens[1:], _END), strict=True):
        if reason := _refused(token, after):
            raise FleetError(f"only queries over the tables of the lake: not with {safe(reason)}")
    _check_relations(tokens)


def _tokens(sql: str) -> list[Token]:
    tokens: list[Token] = []
    begins_at = -1  # where a text would belong to the word before it, as r'...' with other rules for its end
    for found in _TOKEN.finditer(sql):
        kind, said = str(found.lastgroup), found[0]
        if kind == "unclear" or (kind == "text" and begins_at == found.start() and tokens[-1].said == "r"):
            raise FleetError(
                f"position {found.start() + 1}: {safe(said)!r} is not clear enough to go through Spark Connect: leave"
                " it out, or use --master or spark-submit"
            )
        if kind == "space":
            continue
        if kind == "quoted":
            said = said[1:-1].replace("``", "`")
        tokens.append(Token(kind, said if kind == "text" else said.lower()))
        begins_at = found.end()
    return tokens


def _refused(token: Token, after: Token) -> str | None:
    """Part of a query that may not be; None for all others."""
    opens = after == Token("sign", "(")
    if token.kind in ("word", "quoted") and token.said in CALLS_JAVA:
        return f"{token.said}(...), which calls Java"
    if token == Token("word", "identifier") and opens:
        return "IDENTIFIER(...)"
    if token == Token("word", "using") and not opens:  # that of a join has its columns between parentheses
        return "TRANSFORM, MAP or REDUCE, which run a program"
    if token.kind == "text" and opens:
        return f"{token.said}(...)"
    return None


def _check_relations(tokens: Sequence[Token]) -> None:
    """Refuse names of relations with a dot, and elsewhere those that could be one of a file."""
    in_from, expected = [False], False
    for at, token in enumerate(tokens):
        after = tokens[at + 1] if at + 1 < len(tokens) else _END
        is_before = token.kind == "word" and token.said in _BEFORE_RELATION and after.said != "."
        if token.is_name and not is_before:
            _check_name(token, tokens[at + 1 : at + 3], expected=expected)
        if is_before:
            in_from[-1] = in_from[-1] or token.said in ("from", "join")
            expected = True
            continue
        if token.kind == "word" and token.said in _AFTER_FROM:
            in_from[-1] = token.said == "on" and in_from[-1]
        elif token.said == "(" and token.kind == "sign":
            in_from.append(False)
            continue  # what was expected may come between parentheses
        elif token.said == ")" and token.kind == "sign" and len(in_from) > 1:
            in_from.pop()
        expected = token == Token("sign", ",") and in_from[-1]


def _check_name(token: Token, after: Sequence[Token], *, expected: bool) -> None:
    has_dot, is_call = after[:1] == [Token("sign", ".")], after[:1] == [Token("sign", "(")]
    next_part = after[1] if len(after) > 1 else _END
    is_path = next_part.kind in ("quoted", "text") and not re.fullmatch(r"\w+", next_part.said)
    if has_dot and (expected or is_path or token.said in _FORMATS):
        said = safe(f"`{token.said}`.`{next_part.said}`")
        raise FleetError(f"{said} is no table of the lake: kjbod fleet query --tables lists them")
    if expected and is_call and token.said.removesuffix("_outer") not in TABLE_FUNCTIONS | {"select", "values"}:
        raise FleetError(f"only queries over the tables of the lake: not with {safe(token.said)}(...) as a table")
