"""Queries: each table of a lake under a name, SQL, and rows for people or for programs.

The tables of gold and silver are called by their plain name, ``dir_day``, the others with their layer,
``audit_files``. Silver has each row once, whether its date was compacted or not.
"""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kjbod.fleet.command import java_errors, spark_reason
from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.lake.state import State
from kjbod.fleet.session import is_connect
from kjbod.fleet.tables import GOLD, SILVER, TABLES, Table
from kjbod.fleet.upkeep.account import is_verified
from kjbod.fleet.upkeep.query_check import check_plan
from kjbod.fleet.upkeep.query_text import check_text
from kjbod.output import safe, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIMIT = 1000
"""Rows that are printed where no number is given."""
FORMATS = ("table", "csv", "json")


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of a query."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    is_cut: bool
    """Whether there are more rows than were asked for."""


def name_of(known: Table) -> str:
    """Name of a table in a query."""
    return known.name if known.layer in (SILVER, GOLD) else f"{known.layer}_{known.name}"


def listing() -> list[str]:
    """All tables for people: name, grain, columns."""
    lines = []
    for known in TABLES.values():
        lines.append(f"{name_of(known)} ({known.full_name}): {known.grain}")
        lines += [f"    {name} {kind}" for name, kind in known.columns.items()]
    return lines


def silver_once(lake: Lake, state: State, known: Table) -> "DataFrame":
    """Rows of a silver table, each once: those of dates that were compacted are so already, and cost no sort."""
    from kjbod.fleet.silver import each_once

    dates = state.dates(known.full_name)
    clean = [date for date in dates if is_verified(state, known.full_name, date)]
    rest = lake.read(known.full_name, state, dates=set(dates) - set(clean))
    return lake.read(known.full_name, state, dates=clean).unionByName(each_once(rest, known))


def query(lake: Lake, sql: str, limit: int = LIMIT) -> Answer:
    """Run one query over the tables of the newest state.

    Raises:
        FleetError: it is none, or Spark refuses it."""
    from pyspark.errors import PySparkException

    text = sql.strip().removesuffix(";")
    _check(lake.spark, text)
    state = lake.state()
    for known in TABLES.values():
        rows = silver_once(lake, state, known) if known.layer == SILVER else lake.read(known.full_name, state)
        rows.createOrReplaceTempView(name_of(known))
    try:
        result = lake.spark.sql(text)
        columns, found = tuple(result.columns), result.limit(limit + 1).collect()
    except PySparkException as error:
        raise FleetError(_said(error)) from error
    except java_errors() as error:
        raise FleetError(safe(spark_reason(error))) from error
    finally:
        for known in TABLES.values():
            lake.spark.catalog.dropTempView(name_of(known))
    return Answer(columns, tuple(tuple(row) for row in found[:limit]), len(found) > limit)


def _check(spark: "SparkSession", sql: str) -> None:
    """Spark runs a command as soon as it is given one: only what its own parser takes for a query gets so far. The
    client of Spark Connect has no parser: there the words decide, and then the server."""
    from pyspark.errors import ParseException

    if not sql:
        raise FleetError('no query: for example "select host, count(*) from dir_day group by host"')
    if is_connect(spark):
        check_text(sql)
        return
    parser = spark._jsparkSession.sessionState().sqlParser()
    try:
        parser.parseQuery(sql)
    except ParseException as error:
        try:
            parser.parsePlan(sql)
        except ParseException:
            raise FleetError(_said(error)) from None
        raise FleetError("only queries (SELECT, WITH, VALUES): a lake is changed by the other commands") from None
    check_plan(spark, parser.parsePlan(sql), {name_of(known) for known in TABLES.values()})


def _said(error: BaseException) -> str:
    """Spark's reason and position in one line, without the plan and the picture of the query."""
    text = str(error).strip()
    position = ""
    if "== SQL (line" in text:
        position = " (" + text.split("== SQL (", 1)[1].split(")", 1)[0] + ")"
    for end in ("\n== SQL", ";\n", "\n\tat ", "\n\nJVM stacktrace:"):
        text = text.split(end, 1)[0]
    return safe(" ".join(text.split())).replace("\\\\", "\\") + position


def printed(answer: Answer, form: str) -> Iterator[str]:
    """The answer as lines, in one of :data:`FORMATS`; nothing of it is obeyed by a terminal.

    Raises:
        FleetError: JSON, and two columns have one name."""
    if form == "json":
        return _as_json(answer)
    if form == "csv":
        return _as_csv([answer.columns, *answer.rows])
    return iter(_as_table(answer))


def _as_table(answer: Answer) -> list[str]:
    numbers = [
        any(_is_number(row[at]) for row in answer.rows)
        and all(row[at] is None or _is_number(row[at]) for row in answer.rows)
        for at in range(len(answer.columns))
    ]
    # A title that begins with ">" is to the right; one of a user's that does so is not meant.
    head = [
        (">" if right else "") + safe(name).lstrip(">") for name, right in zip(answer.columns, numbers, strict=True)
    ]
    return table(head, [[safe(_cell(value)) for value in row] for row in answer.rows])


def _is_number(value: object) -> bool:
    from decimal import Decimal

    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _as_csv(rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    for row in rows:
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow([_unobeyed(_cell(value)) for value in row])
        yield line.getvalue()


def _as_json(answer: Answer) -> Iterator[str]:
    twice = sorted({name for name in answer.columns if answer.columns.count(name) > 1})
    if twice:
        raise FleetError(
            f"two columns are called {safe(twice[0])}: give one another name with AS, or take --format csv"
        )
    rows = [dict(zip(answer.columns, map(_plain, row), strict=True)) for row in answer.rows]
    return iter(["[", *(_json(row) + ("," if at < len(rows) else "") for at, row in enumerate(rows, 1)), "]"])


def _json(value: object) -> str:
    return json.dumps(value, allow_nan=False).replace("\x7f", "\\u007f")


def _cell(value: object) -> str:
    plain = _plain(value)
    if plain is None:
        return ""
    if isinstance(plain, bool):
        return str(plain).lower()
    return _json(plain) if isinstance(plain, dict | list) else str(plain)


def _unobeyed(text: str) -> str:
    """``text`` with control characters as escapes; backslashes and all else as they are."""
    return "".join(char if char.isprintable() else safe(char) for char in text)


def _plain(value: Any) -> Any:
    """A value as JSON has it: exact numbers stay exact, what JSON has no word for is a text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, dict):
        return {_cell(key): _plain(inner) for key, inner in value.items()}
    if hasattr(value, "asDict"):
        return {name: _plain(inner) for name, inner in zip(value.__fields__, value, strict=True)}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes | bytearray):
        return value.hex()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
