"""The fleet benchmark compares answers, counts growth, and makes the same rows each time."""

from pathlib import Path
from typing import Any

import pytest

from kjbod.fleet.session import spark_session
from scripts.bench.fleet import Cost, Run, arguments, differences, growths, missed, table_of
from scripts.bench.fleet_data import hour_table, make_lake, rows_of
from scripts.bench.fleet_questions import SQL, ask_duckdb, ask_polars, ask_spark
from tests.depth import only_deep


def run(name: str, size: int, questions_s: float, part: str = "questions", wall_s: float = 1) -> Run:
    return Run(part, name, size, rows_of(size), Cost(wall_s, 2 * questions_s, 100, 3), questions_s)


def test_a_growth_is_that_of_twice_as_many_rows() -> None:
    runs = [run("spark", 1, 1), run("spark", 4, 9), run("spark", 8, 18), run("duckdb", 1, 1)]
    assert growths(runs) == growths(runs, cpu=True) == {"spark": pytest.approx(3.0)}
    assert missed(runs) == ["spark: 3.00 times as long for twice as many rows, at most 2.1"]


def test_a_reach_that_is_missed_is_said() -> None:
    runs = [
        run("gold", 8, 3, "days"),
        run("duckdb", 8, 10, "days"),
        run("next hour: ingest --rollup", 8, 1, "hour", 61),
    ]
    assert missed(runs) == [
        "questions of all days: 0.30 of DuckDB's scan, at most 0.2",
        "hour: next hour: 61 s, at most 60",
    ]
    assert missed([run("gold", 8, 1, "days"), run("duckdb", 8, 10, "days")]) == []


@pytest.mark.parametrize("other", [[["a", 1, 2.1]], [["a", 2, 2.0]], [], None])
def test_answers_that_differ_are_said(other: Any) -> None:
    first = {"q": [["a", 1, 2.0]]}
    assert differences({"spark": first, "duckdb": {"q": other}}) == ["q: spark and duckdb answer differently"]
    assert differences({"spark": first, "duckdb": {"q": [["a", 1, 2.0 + 1e-12]]}}) == []


def test_a_run_is_read_back_and_has_a_line_in_the_table() -> None:
    one = run("spark", 1, 1.5)
    assert Run.from_json(one.to_json()) == one
    assert table_of([one])[-1] == "| questions: spark | 2,160,000 | 1.0 | 1.50 | 3.0 | 100 | 3 % |"


def test_the_same_size_and_hour_have_the_same_rows() -> None:
    one = hour_table(1, 3)
    assert one.num_rows * 24 == rows_of(1)
    assert one.equals(hour_table(1, 3))
    assert not one.equals(hour_table(1, 4))


def test_the_quick_form_needs_no_pipeline() -> None:
    options = arguments(["--quick"])
    assert (options.sizes, options.parts, options.engines) == ([1], ["questions"], ["spark", "duckdb", "polars"])


def answers(asked: Any) -> dict[str, Any]:
    return {name: [list(row) for row in question()] for name, question in asked}


def test_all_engines_answer_the_same(tmp_path: Path) -> None:
    make_lake(tmp_path, 1, range(1))
    found = {"duckdb": answers(ask_duckdb(tmp_path)), "polars": answers(ask_polars(tmp_path))}
    assert differences(found) == []
    assert found["duckdb"].keys() == SQL.keys() and all(found["duckdb"].values())


def test_samples_of_two_days_are_those_of_one_and_those_a_day_before(tmp_path: Path) -> None:
    make_lake(tmp_path, 1, range(1))
    one, two = (answers(ask_duckdb(tmp_path, days)) for days in (1, 2))
    assert [row[1] for row in two["states"]] == [2 * row[1] for row in one["states"]]
    assert two["capacity"] == one["capacity"]
    assert two["growth"] != one["growth"]


@only_deep("a quarter of a minute of Spark")
@pytest.mark.usefixtures("with_spark")
def test_spark_answers_as_the_others_do(tmp_path: Path) -> None:
    make_lake(tmp_path, 1, range(1))
    with spark_session("local[2]") as spark:
        found = {"duckdb": answers(ask_duckdb(tmp_path)), "spark": answers(ask_spark(spark, tmp_path))}
    assert differences(found) == []
