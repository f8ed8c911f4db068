"""Columns that this version does not know are found in whatever form a line has."""

import json
from typing import Any

import pytest

from tests.fleet.conftest import Agent

pytestmark = pytest.mark.usefixtures("with_spark")

INBOX = "file:///inbox"


def known() -> dict[str, Any]:
    agent = Agent()
    sample = agent.sample(0, 0, agent.paths[0], probe_histogram={"40": 1, "41": 2}, device="8:16")
    return dict(json.loads(sample.to_json_line()))


@pytest.mark.parametrize(
    ("line", "more"),
    [
        (json.dumps(known()), None),
        (json.dumps(known(), separators=(",", ":")), None),
        (json.dumps(known() | {"rack": None}), None),
        (json.dumps(known() | {"new": 1}), '{"new":1}'),
        (json.dumps(known() | {"new": None}), '{"new":null}'),
        (json.dumps({"new": {"a": ["x"]}} | known(), separators=(",", ":")), '{"new":{"a":["x"]}}'),
        (json.dumps(known() | {"probe_histogram": {}, "new": "b"}, separators=(" , ", "\t: ")), '{"new":"b"}'),
        (json.dumps(known()).replace('"host"', '"\\u0068ost"'), None),
        (json.dumps(known())[:-1] + ', "a b": 1}', '{"a b":1}'),
    ],
)
def test_what_a_line_has_beside_the_known_columns(spark: Any, line: str, more: str | None) -> None:
    from kjbod.fleet.ingest.lines import parsed

    text = spark.createDataFrame([(line, f"{INBOX}/samples/x.jsonl", 1)], "value STRING, _uri STRING, _bytes BIGINT")
    (row,) = parsed(text, INBOX).collect()
    assert (row["_problem"], row["host"]) == (None, "h1")
    assert (row["_more"] and json.loads(row["_more"])) == (more and json.loads(more))


def test_samples_of_two_clusters_that_are_alike_in_all_else_are_two(spark: Any) -> None:
    from kjbod.fleet.silver import each_once
    from kjbod.fleet.tables import SILVER_SAMPLES
    from tests.fleet.silver_rows import frame, lines_of

    agent = Agent(dirs=1)
    agent.sample(0, 0, agent.paths[0])
    (line,) = lines_of("samples", agent)
    other = (*line[:2], json.dumps(json.loads(line[2]) | {"fleet": "another"}))
    rows = frame(spark, SILVER_SAMPLES, [line, other, line])
    assert each_once(rows, SILVER_SAMPLES).count() == 2


@pytest.mark.parametrize(
    "end", ['"x":1,"x":2', '"rack":"q","rack":"r","x":1', '"x":{"a":1,"a":2}', '"x":NaN', "'x':1", '"x":"\\ud800"']
)
def test_a_line_that_is_no_strict_json_is_kept_whole_beside_its_columns(spark: Any, end: str) -> None:
    from kjbod.fleet.ingest.lines import parsed

    line = f"{json.dumps(known())[:-1]},{end}}}"
    text = spark.createDataFrame([(line, f"{INBOX}/samples/x.jsonl", 1)], "value STRING, _uri STRING, _bytes BIGINT")
    (row,) = parsed(text, INBOX).collect()
    assert (row["_problem"], row["host"], row["_more"]) == (None, "h1", line)
