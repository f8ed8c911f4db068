"""Verification finds what is damaged, and names it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.lake.state import ALL_DATES, Piece, State
from kjbod.fleet.tables import AUDIT_FILES, DIR_DAY, DIR_HOUR, DRIVE_LIFE, EXPOSURE_DAY, HOST_DAY, SILVER_SAMPLES
from tests.fleet.parts import drawn
from tests.fleet.upkeep.lakes import DAY, audit_row, event, ingest, make_lake, put, rollup, sample

pytestmark = [pytest.mark.usefixtures("with_spark"), drawn("upkeep verify")]


def root_of(lake: Lake) -> Path:
    return Path(lake.uri.removeprefix("file:"))


def differences(lake: Lake, count: int = 9, seed: int = 0) -> list[str]:
    from kjbod.fleet.upkeep.verify import verify

    return list(verify(lake, lambda _text: None, count, seed).differences)


def data_files(lake: Lake, table: str, date: str = DAY) -> list[Path]:
    pieces = lake.state().pieces(table, [date])
    return sorted(file for piece in pieces for file in (root_of(lake) / piece.path).rglob("*.parquet"))


def drop_checksums(file: Path) -> None:
    """Hadoop's own, beside the file, so that it is Spark that has to notice."""
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)


def test_a_whole_lake_is_whole_compacted_or_not(lake: Lake, compact_lake: Lake) -> None:
    from kjbod.fleet.upkeep.verify import verify

    for one in (lake, compact_lake):
        found = verify(one, lambda _text: None, 2, seed=5)
        assert found.differences == () and len(found.hours) == 2
    ingest(lake, [sample(6, n, _file="plain") for n in range(2)], crc=False)  # no trailer
    rollup(lake)
    assert differences(lake) == []


def test_a_lake_without_gold_fails_and_says_which_hours_wait(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from kjbod.fleet.command import EXIT_DATA, Place, Running
    from kjbod.fleet.upkeep.commands import verify_lake
    from kjbod.output import Printer

    lake = make_lake(spark, tmp_path / "new")
    ingest(lake, [sample(3, 0)], [event(5, 0)])
    assert verify_lake(Running("verify", Place(), Printer()), spark, lake.uri, 0, 0) == EXIT_DATA
    said = capsys.readouterr().out
    assert f"2 hours of silver without its gold ({DAY}T03 to {DAY}T05): run kjbod fleet rollup, then verify" in said
    assert "all equal" not in said


@pytest.mark.parametrize(
    ("touched", "said"),
    [
        ((), []),
        ((f"{DAY}T03",), [f"1 hour of silver without its gold ({DAY}T03)"]),
        ((f"{DAY}T04", f"{DAY}T03"), [f"2 hours of silver without its gold ({DAY}T03 to {DAY}T04)"]),
        ((f"{DAY}T07",), [f"1 hour of silver without its gold ({DAY}T07)"]),  # of events alone
        ((f"{DAY}T09",), []),  # no silver of it: retention has dropped it
        (("2026-10-31T01",), []),  # of a date of which retention has dropped silver
    ],
)
def test_an_hour_waits_for_a_rollup_while_it_is_touched_and_has_silver(
    touched: tuple[str, ...], said: list[str]
) -> None:
    from kjbod.fleet.upkeep.verify import _waiting

    state = State("id", notes={"silver-from": DAY})
    state = state.with_pieces(
        "silver.samples", [Piece("a", DAY, ("03", "04"), 2), Piece("b", "2026-10-31", ("01",), 1)]
    )
    state = state.with_pieces("silver.events", [Piece("c", DAY, ("07",), 1)]).with_touched(touched)
    assert [line.partition(": run kjbod fleet rollup")[0] for line in _waiting(state)] == said


def delete(lake: Lake) -> str:
    file = data_files(lake, "silver.samples")[0]
    file.unlink()
    return str(file.parent.relative_to(root_of(lake)))


def delete_piece(lake: Lake) -> str:
    (piece, *_) = lake.state().pieces("gold.dir_hour", [DAY])
    shutil.rmtree(root_of(lake) / piece.path)
    return piece.path


def truncate(lake: Lake) -> str:
    file = data_files(lake, "gold.dir_hour")[0]
    drop_checksums(file)
    file.write_bytes(file.read_bytes()[:-30])
    return file.name


def not_parquet(lake: Lake) -> str:
    file = data_files(lake, "audit.files")[0]
    drop_checksums(file)
    file.write_bytes(b"x" * 100)
    return file.name


def double(lake: Lake) -> str:
    file = data_files(lake, "silver.events")[0]
    (file.parent / "part-copy.parquet").write_bytes(file.read_bytes())
    return "silver.events of 2026-11-01"


def spoil(lake: Lake, table: str, column: str) -> str:
    """Another last byte of a page: the file's end still tells how many rows there are."""
    from pyarrow import parquet

    file = data_files(lake, table)[0]
    drop_checksums(file)
    group = parquet.ParquetFile(file).metadata.row_group(0)
    (chunk,) = (c for n in range(group.num_columns) if (c := group.column(n)).path_in_schema == column)
    content = bytearray(file.read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size - 1 - _dictionary_bytes(chunk)] ^= 0xFF
    file.write_bytes(content)
    return f"{table} of {DAY}: cannot be read"


def _dictionary_bytes(chunk: Any) -> int:
    return chunk.data_page_offset - chunk.dictionary_page_offset if chunk.has_dictionary_page else 0


def spoil_audit(lake: Lake) -> str:
    return spoil(lake, "audit.files", "uri")


def spoil_gold(lake: Lake) -> str:
    return spoil(lake, "gold.dir_hour", "used_min")


def spoil_silver(lake: Lake) -> str:
    return spoil(lake, "silver.samples", "bytes_total")


@pytest.mark.parametrize(
    "damage", [delete, delete_piece, truncate, not_parquet, double, spoil_audit, spoil_gold, spoil_silver]
)
def test_files_that_are_gone_cut_or_doubled_are_named(lake: Lake, damage: Callable[[Lake], str]) -> None:
    named = damage(lake)
    found = differences(lake, 0)
    assert any(named in line for line in found), found
    assert len(found) <= 2 and all("\n" not in line for line in found)


def change_piece(lake: Lake, rows: list[dict[str, Any]], old: int) -> None:
    """A batch with other rows in the place of one, with a state that fits."""

    def change(state: State) -> State:
        gone = [piece for piece in state.pieces("silver.samples", [DAY]) if piece.rows == old]
        return put(lake, state.with_pieces("silver.samples", [], replaced=gone), SILVER_SAMPLES, rows, DAY)

    lake.commit(change, "somebody")


LATE = [sample(3, n, "h3") for n in range(2)]
AGAIN = [sample(3, n, _file="copy.boot.1.0.jsonl.gz") for n in range(2)]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (LATE[:1] + AGAIN, "1 rows of h3.boot"),
        (LATE + LATE + AGAIN, "4 rows of h3.boot"),
        (LATE + AGAIN + [sample(3, 5, "h5")], "of which no audit row says that it was kept"),
        ([LATE[0], {**LATE[1], "_line": 5}, *AGAIN], "are not the lines whose sum is in its trailer"),
    ],
    ids=["lost", "doubled", "unknown file", "altered"],
)
def test_rows_that_are_not_those_of_the_audit_are_named_by_file(
    lake: Lake, rows: list[dict[str, Any]], said: str
) -> None:
    change_piece(lake, rows, old=4)
    found = differences(lake, 0)
    assert any(said in line for line in found), found


def test_rows_that_are_lost_after_compacting_are_missed_in_the_sum(compact_lake: Lake) -> None:
    lake = compact_lake
    rows = [sample(h, n, host) for h in (3, 4) for n in range(3) for host in ("h1", "h2")]
    change_piece(lake, rows, old=26)
    (line,) = [line for line in differences(lake, 0) if "difference of" in line]
    assert "silver.samples: kept files had 30 good lines, and there are 14 rows; 2 repetitions" in line
    assert line.endswith("leave a difference of +14")


def test_a_compacted_piece_that_was_changed_is_found_by_its_checksum(compact_lake: Lake) -> None:
    lake = compact_lake
    (file,) = data_files(lake, "silver.samples")
    rows = lake.spark.read.parquet(str(file))
    rows.selectExpr("* except (bytes_used)", "bytes_used + 1 as bytes_used").coalesce(1).write.parquet(f"{file}.other")
    drop_checksums(file)
    next(Path(f"{file}.other").glob("*.parquet")).replace(file)
    shutil.rmtree(f"{file}.other")
    found = differences(lake)
    assert any("has not the rows any more that compacting verified" in line for line in found), found
    assert any("gold.dir_hour" in line and "differ from silver" in line for line in found), found


def test_gold_that_is_not_that_of_its_silver_is_named_by_directory(lake: Lake) -> None:
    wrong = {"fleet": "f", "host": "h1", "broker_id": 1, "path": "/d1", "dir_id": "h1/d1", "samples": 7, "used_min": 1}
    ghost = {**wrong, "host": "ghost"}

    def change(state: State) -> State:
        old = state.pieces(DIR_HOUR.full_name, hours=[f"{DAY}T03"])
        rows = [{**row, "date": DAY, "hour": "03"} for row in (wrong, ghost)]
        return put(lake, state.with_pieces(DIR_HOUR.full_name, [], replaced=old), DIR_HOUR, rows, DAY, ["03"])

    lake.commit(change, "somebody")
    found = "\n".join(differences(lake))
    assert f"gold.dir_hour of {DAY}T03: h1 /d1: samples, used_min, used_max, line_n" in found
    assert "ghost /d1: gold has a row, and silver has no sample of it" in found
    assert "h2 /d2: silver has samples of it, and gold has no row" in found


def test_gold_that_is_there_twice_and_days_that_are_not_those_of_their_hours_are_named(lake: Lake) -> None:
    def change(state: State) -> State:
        rows = [row.asDict() for row in lake.read(DIR_DAY.full_name, state, dates=[DAY]).collect()]
        state = put(lake, state, DIR_DAY, rows[:1], DAY)
        for table in (HOST_DAY, EXPOSURE_DAY):
            state = put(lake, state, table, [{"fleet": "f", "host": "h9", "source": "kjbod", "date": DAY}], DAY)
        return put(lake, state, DRIVE_LIFE, [{"fleet": "f", "drive": "S9", "date": ALL_DATES}], ALL_DATES)

    lake.commit(change, "somebody")
    found = differences(lake)
    assert f"gold.host_day of {DAY}: its rows are not those that gold.dir_day gives" in found
    assert f"gold.exposure_day of {DAY}: its rows are not those that gold.drive_day gives" in found
    assert "gold.drive_life: its rows are not those that gold.drive_day gives" in found
    assert f"gold.dir_day of {DAY}: 1 keys are there more than once" in found
    assert f"gold.dir_day of {DAY}: its rows are not those that gold.dir_hour gives" in found


def test_rows_are_those_of_their_piece_whatever_is_in_the_path_of_the_lake() -> None:
    from kjbod.fleet.upkeep.verify import _parts

    below = "silver/samples/date=2026-11-01/0/part-0.parquet"
    for root, as_spark_has_it in (
        ("file:/a b/100%25 #1?/\u00e4", "file:///a%20b/100%2525%20%231%3F/%C3%A4"),
        ("hdfs://host:9000/a#b", "hdfs://host:9000/a%23b"),
        ("s3a://bucket", "s3a://bucket"),
    ):
        assert "/".join(_parts(f"{as_spark_has_it}/{below}")[len(_parts(root)) :]) == below


def test_hours_of_silver_that_have_no_gold_and_are_not_touched_are_named(lake: Lake) -> None:
    def change(state: State) -> State:
        return state.with_pieces(DIR_HOUR.full_name, [], replaced=state.pieces(DIR_HOUR.full_name, hours=[f"{DAY}T04"]))

    lake.commit(change, "somebody")
    (line,) = differences(lake, 0)
    assert line == f"gold.dir_hour of {DAY}: no rows of 04 h, and silver has"


def test_the_same_seed_draws_the_same_hours(lake: Lake) -> None:
    from kjbod.fleet.upkeep.verify import verify

    drawn = [verify(lake, lambda _text: None, 1, seed).hours for seed in (1, 1)]
    assert drawn[0] == drawn[1] != ()


def test_an_audit_row_without_its_rows_is_missed(lake: Lake) -> None:
    row = audit_row("samples", sample(3, 0, "h8")) | {"lines": 3, "good_lines": 3}
    lake.commit(lambda s: put(lake, s, AUDIT_FILES, [row], DAY), "somebody")
    found = differences(lake, 0)
    assert any("leave a difference of +3" in line for line in found)
    assert any("0 rows of h8.boot" in line for line in found)
