"""Queries: what is answered, what is refused, and what a terminal gets to see."""

import csv
import io
import json
from typing import Any

import pytest

from kjbod.fleet.command import Place, Running
from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.lake.arrow_files import ArrowFiles
from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.tables import TABLES
from kjbod.fleet.upkeep.query import Answer, listing, name_of, printed
from kjbod.fleet.upkeep.query_text import check_text
from kjbod.output import Printer
from tests.fleet.parts import drawn

pytestmark = [pytest.mark.usefixtures("with_spark"), drawn("upkeep query")]


def test_names_of_tables_are_not_those_of_others_and_all_are_listed() -> None:
    names = [name_of(table) for table in TABLES.values()]
    assert len(set(names)) == len(names) and {"dir_day", "samples", "audit_files", "imported_drive_day"} <= set(names)
    text = "\n".join(listing())
    assert all(f"{name} (" in text for name in names) and "    used_min BIGINT" in text


def test_a_query_sees_each_row_once_compacted_or_not(lake: Lake, compact_lake: Lake) -> None:
    from kjbod.fleet.upkeep.query import query

    sql = "select host, count(*) as n from samples where date = '2026-11-01' group by host order by host;"
    for one in (lake, compact_lake):
        assert query(one, sql).rows == (("h1", 12), ("h2", 12), ("h3", 2))
    answer = query(lake, "with q as (select * from dir_hour) select count(*) from q", 5)
    assert answer.rows == ((10,),) and not answer.is_cut
    sql = "select (select max(q.x) from Q) from range(2) r join lateral explode(array(r.id, 7)) as t(x) on true"
    assert query(lake, f"with recursive q as (select 1 as x) {sql}").rows == ((1,),) * 4
    cut = query(lake, "select ts from samples order by ts", 3)
    assert len(cut.rows) == 3 and cut.is_cut
    assert query(lake, "table audit_quarantine").rows[0][4] == "}"


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("", "no query"),
        (";", "no query"),
        ("drop table samples", "only queries"),
        ("create table x as select 1", "only queries"),
        ("insert into samples select * from samples", "only queries"),
        ("from samples insert into samples select *", "only queries"),
        ("with a as (select 1) insert into samples select * from a", "only queries"),
        ("set spark.sql.ansi.enabled=false", "only queries"),
        ("begin select 1; end", "only queries"),
        ("execute immediate 'drop table x'", "only queries"),
        ("select 1; drop table samples", "line 1, pos"),
        ("selec 1", "line 1, pos 0"),
        ("select host frm samples where", "line 1, pos"),
        ("select nope from samples", "line 1 pos 7"),
        ("select * from gold.dir_day", "`gold`.`dir_day` is no table of the lake: kjbod fleet query --tables"),
        ("select * from nope", "`nope` is no table of the lake"),
        ("select 1/0", "line 1, position 8"),
        ("select * from parquet.`/no/such`", "`parquet`.`/no/such` is no table of the lake"),
        ("with q as (select * from text.`/x`) select 1", "`text`.`/x` is no table"),
        ("select 1 where 1 in (select value from text.`/x`)", "`text`.`/x` is no table"),
        ("select 1 from dir_day window w as (order by (select 1 from csv.`/x`))", "`csv`.`/x` is no table"),
        ("values (1), ((select 1 from text.`/x`))", "`text`.`/x` is no table"),
        ("select * from identifier('text.`/x`')", "`text`.`/x` is no table"),
        ("select * from identifier(concat('text.', '`/x`'))", "not with IDENTIFIER"),
        ("select identifier(concat('refl', 'ect'))('a', 'b')", "not with IDENTIFIER"),
        ("select transform(host) using 'touch X' from samples", "not with TRANSFORM"),
        ("select 1 from (from samples map host using 'cat')", "not with TRANSFORM"),
        ("select reflect('java.lang.System', 'exit')", "not with reflect(...), which calls Java"),
        ("select 1 from samples where `Java_Method`('a', 'b') = ''", "not with java_method(...)"),
        ("select 1 from dir_day lateral view try_reflect('a', 'b') t as x", "not with try_reflect(...)"),
        ("select * from sql_keywords()", "not with sql_keywords(...) as a table"),
        ("select `\x1b[2Jx` from samples", "\\x1b[2Jx"),
    ],
)
def test_what_is_no_query_or_a_wrong_one_is_refused_in_one_line(lake: Lake, sql: str, said: str) -> None:
    from kjbod.fleet.upkeep.query import query

    before = lake.state()
    with pytest.raises(FleetError) as refused:
        query(lake, sql)
    text = str(refused.value)
    assert said in text and "\n" not in text and "\x1b" not in text and "== SQL" not in text, text
    assert lake.state() == before
    assert lake.spark.catalog.listTables() == []


@pytest.mark.parametrize(
    "sql",
    [
        "select host, count(*) as n from samples where date = '2026-11-01' group by host",
        "with q as (select * from dir_hour) select count(*), q.* from q",
        "values (1), (2.), (.5)",
        "(select 1) union all (select 2)",
        "select a.host, b.`used_min` from dir_day a join dir_day b using (host, path), dir_hour c where a.host = ''",
        "select 'drop; insert into text.`/x` reflect(' as t, \"it\\\"s\" -- transform using 'x'\n from dir_day",
        "select /* insert into ` ' */ transform(array(1), x -> x + 1) from range(3)",
        "select q.x from (select 1 as x) q, lateral explode(array(1)) as t(y) order by q.x, t.y",
        "select max(d.used_min), d.host from dir_day d group by d.host, d.path having count(*) > 1",
    ],
)
def test_a_text_that_is_clearly_a_query_goes_through_spark_connect(sql: str) -> None:
    check_text(sql)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("", "only queries"),
        ("-- select", "only queries"),
        ("drop table samples", "only queries"),
        ("with a as (select 1) insert into samples select * from a", "only queries"),
        ("with a as (select 1) Merge/**/into samples using a", "only queries"),
        ("select 1; drop table samples", "one query at a time"),
        ("select ';' ; select 2", "one query at a time"),
        ("select transform(host) using 'touch X' from samples", "not with TRANSFORM"),
        ("select 1 from (select * from samples) map host using /* ( */ 'cat'", "not with TRANSFORM"),
        ("select reflect('java.lang.System', 'exit')", "not with reflect(...), which calls Java"),
        ("select system.builtin.`Java_Method`('a', 'b')", "not with java_method(...)"),
        ('select "try_reflect"(1)', "not with"),
        ("select 1 from dir_day lateral view try_reflect('a', 'b') t as x", "not with try_reflect(...)"),
        ("select identifier/**/('reflect')('a', 'b')", "not with IDENTIFIER"),
        ("select * from text.`/x`", "`text`.`/x` is no table"),
        ("select * from samples join CSV . `/x`", "`csv`.`/x` is no table"),
        ("select * from dir_day, parquet.x", "`parquet`.`x` is no table"),
        ("select * from dir_day a, odd.x", "`odd`.`x` is no table"),
        ("select * from dir_day a join dir_hour b on a.host = b.host, odd.x", "`odd`.`x` is no table"),
        ("select * from (((odd.x)))", "`odd`.`x` is no table"),
        ("select * from (dir_day), (odd.x)", "`odd`.`x` is no table"),
        ("select * from `from`.`/x`", "`from`.`/x` is no table"),
        ("select * from stream.x", "`stream`.`x` is no table"),
        ('select * from odd."/x"', "is no table"),
        ("with q as (select * from `a.b.C`.`/x`) select 1", "`a.b.c`.`/x` is no table"),
        ("select 1 where 1 in (table odd.x)", "`odd`.`x` is no table"),
        ("select 1 from dir_day window w as (order by (select 1 from json.`/x`))", "`json`.`/x` is no table"),
        ("select * from sql_keywords()", "not with sql_keywords(...) as a table"),
        ("select * from dir_day, sql_keywords()", "not with sql_keywords(...) as a table"),
        ("select r'\\', x from text.`/x` -- '", "is not clear enough"),
        ("select /*+ broadcast(a) */ 1", "is not clear enough"),
        ("select /* /* */ 1", "is not clear enough"),
        ("select 'a", "is not clear enough"),
        ("select $$a$$", "is not clear enough"),
        ("select tran\u017fform(host) from samples", "is not clear enough"),
        ("select 1 -- \\\n, '\n from text.`/x` -- '", "`text`.`/x` is no table"),
    ],
)
def test_a_text_that_may_be_more_than_a_query_does_not_go_through_spark_connect(sql: str, said: str) -> None:
    with pytest.raises(FleetError) as refused:
        check_text(sql)
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_through_spark_connect_the_text_decides() -> None:
    from kjbod.fleet.upkeep.query import query

    session: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(FleetError, match="only queries"):
        query(Lake(session, ArrowFiles("/nonexistent"), "id"), "drop table samples")


def test_what_a_terminal_would_obey_is_printed_as_an_escape(spark: Any) -> None:
    row = spark.sql("select map('a', 1) m, array(1.5d, double('nan')) l, struct(1 as x) s, date'2026-11-01' d").first()
    evil = 'a\x1b]0;x\x07"b",\n\x9b\x7f'
    answer = Answer(
        ("t", ">n", "m", "l", "s", "d"), ((evil, 1, *row), (None, None, None, None, None, None)), is_cut=False
    )
    for form in ("table", "csv", "json"):
        text = "\n".join(printed(answer, form))
        assert not any(char in text for char in "\x1b\x07\x9b\x7f"), form
    assert next(iter(printed(answer, "table"))).startswith("t ")
    found = list(csv.reader(io.StringIO("\n".join(printed(answer, "csv")))))
    assert found[1] == ['a\\x1b]0;x\\x07"b",\\n\\x9b\\x7f', "1", '{"a": 1}', '[1.5, "nan"]', '{"x": 1}', "2026-11-01"]
    assert found[2] == [""] * 6
    first, second = json.loads("\n".join(printed(answer, "json")))
    assert first["t"] == evil and first["s"] == {"x": 1} and first["l"] == [1.5, "nan"] and second["m"] is None
    assert json.loads("\n".join(printed(Answer(("a",), (), is_cut=False), "json"))) == []
    with pytest.raises(FleetError, match="two columns are called a"):
        printed(Answer(("a", "a"), ((1, 2),), is_cut=False), "json")


def test_numbers_stand_to_the_right_and_texts_to_the_left() -> None:
    answer = Answer(("host", "n"), (("h1", 5), ("host2", 1234)), is_cut=False)
    assert list(printed(answer, "table")) == ["host      n", "h1        5", "host2  1234"]


def test_the_commands_say_what_they_did(lake: Lake, spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from kjbod.fleet.upkeep import commands
    from kjbod.fleet.upkeep.retain import Limits

    running = Running("test", Place(), Printer())
    assert commands.query_lake(running, spark, lake.uri, "select host from samples order by host", "csv", 2) == 0
    said = capsys.readouterr()
    assert said.out == "host\nh1\nh1\n" and "only the first 2 rows: --limit" in said.err
    assert commands.retain_lake(running, spark, lake.uri, Limits(1, 100), (), dry_run=True) == 1
    assert (
        "kept though it is old: not compacted and verified: kjbod fleet compact --day 2026-11-01"
        in capsys.readouterr().out
    )
    assert commands.compact_lake(running, spark, lake.uri, ["2026-11-02"], 1) == 0
    assert "silver.samples 2026-11-02: 1 piece -> 1, 2 rows" in capsys.readouterr().out
    assert commands.compact_lake(running, spark, lake.uri, ["2026-11-02"], 1) == 0
    assert "nothing to compact" in capsys.readouterr().out
    assert commands.compact_lake(running, spark, lake.uri, ["2026-12-31", "2026-11-02"], 1) == 0
    assert "no data of 2026-12-31: the lake has 2026-11-01 to 2026-11-02" in capsys.readouterr().out
    assert commands.verify_lake(running, spark, lake.uri, 1, 0) == 0
    assert "1 hour and 1 date of gold computed again: all equal" in capsys.readouterr().out
