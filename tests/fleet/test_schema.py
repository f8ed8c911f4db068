"""The columns: one table for the agent's JSON and Spark's schema."""

import dataclasses
import json

import pytest

from kjbod.fleet.schema import (
    EVENT_KEY,
    INCIDENT_KINDS,
    SAMPLE_KEY,
    Event,
    EventKind,
    Sample,
    columns,
    ddl,
    latency_bucket,
    required_columns,
)


def event(**more: object) -> Event:
    known = {"ts": 1, "mono_ns": 2, "boot_id": "b", "kind": "registered", "host": "h", "broker_id": 1}
    return Event(**(known | more))  # type: ignore[arg-type]


def test_every_column_has_a_spark_type_and_the_keys_are_columns() -> None:
    assert columns(Sample)["bytes_used"] == "BIGINT"
    assert columns(Sample)["probe_histogram"] == "MAP<STRING,BIGINT>"
    assert columns(Event)["attrs"] == "MAP<STRING,STRING>"
    assert ddl(Event).startswith("event_id STRING, incident STRING, ts BIGINT")
    assert set(SAMPLE_KEY) <= set(columns(Sample))
    assert set(EVENT_KEY) <= set(columns(Event))


def test_a_line_may_lack_what_is_unknown_and_nothing_else() -> None:
    assert required_columns(Event) == ("event_id", "ts", "mono_ns", "boot_id", "kind", "host", "broker_id")
    optional = {f.name for f in dataclasses.fields(Sample)} - set(required_columns(Sample))
    assert {"dir_id", "bytes_total", "leaders", "v"} <= optional


def test_unknown_values_are_left_out_of_the_line() -> None:
    line = json.loads(event(path="/d").to_json_line())
    assert "dir_id" not in line
    assert line["path"] == "/d"
    assert line["v"] == 1


def test_an_event_id_is_the_same_for_the_same_event_and_another_for_another() -> None:
    assert event().event_id == event().event_id
    others = [event(mono_ns=3), event(kind="fenced"), event(path="/d"), event(attrs={"partition": "1"})]
    assert len({event().event_id, *(other.event_id for other in others)}) == 5


@pytest.mark.parametrize("kind", sorted(INCIDENT_KINDS))
def test_all_steps_of_a_failure_carry_the_same_incident(kind: EventKind) -> None:
    failed = event(kind=EventKind.DIR_FAILED, dir_id="x", path="/d", mono_ns=1)
    assert event(kind=kind, dir_id="x", path="/d", mono_ns=9).incident == failed.incident is not None
    assert event(kind=kind, dir_id="x", path="/d", boot_id="next").incident != failed.incident
    assert event(kind=kind).incident is None


@pytest.mark.parametrize(("us", "bucket"), [(0, "0"), (1, "0"), (2, "4"), (1_000, "39"), (1_000_000, "79")])
def test_latency_buckets_are_quarters_of_a_doubling(us: int, bucket: str) -> None:
    assert latency_bucket(us) == bucket
