"""Compacting changes where rows are, and never what they are."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.lake.state import State
from kjbod.fleet.tables import AUDIT_FILES, DIR_HOUR, SILVER_EVENTS, SILVER_SAMPLES
from kjbod.fleet.upkeep.account import compacted, is_verified
from tests.fleet.parts import drawn
from tests.fleet.upkeep.lakes import DAY, ingest, rows_of, sample

pytestmark = [pytest.mark.usefixtures("with_spark"), drawn("upkeep compact")]


def quiet(_text: str) -> None:
    pass


def distinct(rows: list[tuple[Any, ...]], table: Any) -> set[tuple[Any, ...]]:
    names = list(table.columns)
    return {tuple(row[names.index(name)] for name in table.key) for row in rows}


def test_a_day_becomes_one_piece_with_each_row_once_and_its_readers_see_the_old_or_the_new_one(lake: Lake) -> None:
    from kjbod.fleet.upkeep.compact import compact

    before = {table.full_name: rows_of(lake, table) for table in (SILVER_SAMPLES, SILVER_EVENTS, AUDIT_FILES, DIR_HOUR)}
    old = lake.state()
    done = {one.table: one for one in compact(lake, [DAY], quiet)}
    now = lake.state()

    # silver: h1's two lines were in two files
    assert (done["silver.samples"].pieces, done["silver.samples"].rows, done["silver.samples"].repeated) == (2, 26, 2)
    after = rows_of(lake, SILVER_SAMPLES)
    assert set(after) < set(before["silver.samples"]) and len(after) == 26
    assert distinct(after, SILVER_SAMPLES) == distinct(before["silver.samples"], SILVER_SAMPLES)
    (piece,) = now.pieces("silver.samples", [DAY])
    assert piece.rows == 26 and piece.hours == ("03", "04") and is_verified(now, "silver.samples", DAY)
    # of repetitions the line of the smallest file name stays
    names = list(SILVER_SAMPLES.columns)
    files = {row[names.index("_file")] for row in after if row[names.index("host")] == "h1"}
    assert "copy.boot.1.0.jsonl.gz" in files

    # all else is the same rows
    for table in (SILVER_EVENTS, AUDIT_FILES, DIR_HOUR):
        assert rows_of(lake, table) == before[table.full_name]
        assert len(now.pieces(table.full_name, [DAY])) == 1

    # sorted in the file
    stored = lake.spark.read.parquet(lake.full(piece.path)).select("host", "broker_id", "path", "ts").collect()
    assert stored == sorted(stored)

    # a reader of the old state still finds its files, and what was replaced waits for retention
    assert lake.read("silver.samples", old, dates=[DAY]).count() == 28
    assert {r.path for r in now.retired} >= {p.path for p in old.pieces("silver.samples", [DAY])}

    # the other day is as it was; and the same again is nothing
    assert now.pieces("silver.samples", ["2026-11-02"]) == old.pieces("silver.samples", ["2026-11-02"])
    assert compact(lake, [DAY], quiet) == [] and lake.state().version == now.version

    # a late batch makes it two, and compacting one; repetitions are counted on
    ingest(lake, [sample(3, n, "h3", _file="late") for n in range(3)])
    assert not is_verified(lake.state(), "silver.samples", DAY)
    (done_again,) = [one for one in compact(lake, [DAY], quiet) if one.table == "silver.samples"]
    assert (done_again.rows, done_again.repeated) == (27, 2)
    note = compacted(lake.state(), "silver.samples", DAY)
    assert note is not None and note.repeated == 4


def test_a_batch_that_comes_while_it_is_compacted_stays_a_piece(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from kjbod.fleet.upkeep import compact as job
    from kjbod.fleet.upkeep.checksum import summary

    def late(*given: Any) -> Any:
        if not any("h9" in str(row) for row in rows_of(lake, SILVER_SAMPLES)):
            ingest(lake, [sample(5, 0, "h9")])
        return summary(*given)

    monkeypatch.setattr(job, "summary", late)
    job.compact(lake, [DAY], quiet)
    state = lake.state()
    assert sorted(piece.rows for piece in state.pieces("silver.samples", [DAY])) == [1, 26]
    assert not is_verified(state, "silver.samples", DAY)
    assert f"{DAY}T05" in state.touched


def test_pieces_that_somebody_else_replaces_meanwhile_are_compacted_anew(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kjbod.fleet.upkeep import compact as job
    from kjbod.fleet.upkeep.checksum import distinct_summary

    calls: list[int] = []

    def other(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            (one, *_) = lake.state().pieces("silver.samples", [DAY])

            def replace(state: State) -> State:
                return state.with_pieces("silver.samples", [], replaced=[one])

            lake.commit(replace, "other")
        return distinct_summary(*given)

    monkeypatch.setattr(job, "distinct_summary", other)
    told: list[str] = []
    job.compact(lake, [DAY], told.append)
    assert any("somebody else" in line for line in told)
    (piece,) = lake.state().pieces("silver.samples", [DAY])
    assert piece.rows in (4, 24)
    folder = Path(lake.uri.removeprefix("file:")) / "silver/samples" / f"date={DAY}"
    named = {p.path for p in lake.state().pieces("silver.samples")} | {r.path for r in lake.state().retired}
    assert {f"silver/samples/date={DAY}/{one.name}" for one in folder.iterdir()} <= named


@pytest.mark.parametrize("stage", ["read", "write", "verify", "commit"])
def test_a_kill_at_any_stage_leaves_the_old_pieces(lake: Lake, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from kjbod.fleet.lake.writer import LakePieces
    from kjbod.fleet.upkeep import compact as job

    class KilledError(BaseException):
        pass

    def killed(*_given: Any, **_more: Any) -> Any:
        raise KilledError

    where = {
        "read": (job, "piece_bytes"),
        "write": (LakePieces, "write"),
        "verify": (job, "_verified"),
        "commit": (lake.files, "create"),
    }
    before, rows = lake.state(), rows_of(lake, SILVER_SAMPLES)
    with monkeypatch.context() as patch:
        patch.setattr(*where[stage], killed)
        with pytest.raises(KilledError):
            job.compact(lake, [DAY], quiet)
    assert lake.state() == before and rows_of(lake, SILVER_SAMPLES) == rows
    if stage == "commit":
        job.compact(lake, [DAY], quiet)
        assert len(lake.state().pieces("silver.samples", [DAY])) == 1


def test_rows_that_are_lost_on_the_disk_are_not_compacted_away(lake: Lake, tmp_path: Path) -> None:
    from kjbod.fleet.upkeep.compact import compact

    piece = lake.state().pieces("silver.samples", [DAY])[0]
    hour = next((tmp_path / "lake" / piece.path).glob("hour=*"))
    for file in hour.glob("*.parquet"):
        file.unlink()
    before = lake.state()
    with pytest.raises(FleetError, match="its state says"):
        compact(lake, [DAY], quiet)
    assert lake.state() == before


def test_files_that_were_not_written_as_they_were_read_are_not_taken(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kjbod.fleet.upkeep import compact as job
    from kjbod.fleet.upkeep.checksum import summary

    def differs(*given: Any) -> Any:
        found = summary(*given)
        return dataclasses.replace(found, checksum=found.checksum + 1)

    monkeypatch.setattr(job, "summary", differs)
    before = lake.state()
    with pytest.raises(FleetError, match="was not written as it was read"):
        job.compact(lake, [DAY], quiet)
    assert lake.state() == before
