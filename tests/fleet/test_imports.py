"""Published histories of drives become tables of a lake, whole or not at all."""

import csv
import gzip
import io
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.imports.formats import header
from kjbod.fleet.imports.zips import UNPACKED_BYTES_MAX, zip_lines
from kjbod.fleet.lake.state import ALL_DATES, LostPiecesError, Piece, State
from tests.depth import only_deep
from tests.fleet.parts import drawn
from tests.fleet.shared_data import shared
from tests.test_smart_raw import VALUES

pytestmark = [pytest.mark.usefixtures("with_spark"), drawn("imports")]
HOSTILE = 'WDC "<script>alert(1)</script>" \x1b[31m\u2028\'; DROP TABLE drive_day; --'
SMART = ("smart_188_raw", "smart_5_raw", "smart_9_raw", "smart_187_raw", "smart_194_raw", "smart_197_raw")


def day_csv(date: str, drives: int = 110, *, failed: tuple[int, ...] = (), more: tuple[str, ...] = SMART) -> str:
    """Drives of one day; the later columns are not in all years."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["date", "serial_number", "model", "capacity_bytes", "failure", *more])
    for number in range(drives):
        model = HOSTILE if number == 0 else f"M{number % 2}"
        capacity = -1 if number == 3 else 4 * 10**12
        odd = {"smart_5_raw": number % 7, "smart_188_raw": number << 32 | 2}
        smart = [odd.get(name, 200_000 if number == 4 else 9_000) for name in more]
        writer.writerow([date, f"S{number}", model, capacity, int(number in failed), *smart])
    return out.getvalue()


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from kjbod.fleet.lake.lake import open_lake

    return open_lake(spark, (tmp_path_factory.mktemp("imports") / "lake").as_uri(), create=True)


@pytest.fixture(scope="module")
def take(lake: Any) -> Callable[..., tuple[int, list[str]]]:
    """Imports files; gives the exit code and what was said."""

    def run(source: str, *paths: object) -> tuple[int, list[str]]:
        from kjbod.fleet.imports.importing import import_into

        said: list[str] = []
        code = import_into(
            lake, source, [str(path) for path in paths], lambda text: None, lambda *lines: said.extend(lines)
        )
        return code, said

    return run


def refused(take: Callable[..., Any], lake: Any, source: str, *paths: object) -> str:
    """The one line that is said of files that are not taken; the lake is as it was."""
    before = lake.state()
    with pytest.raises(FleetError) as error:
        take(source, *paths)
    assert lake.state() == before
    assert "\n" not in str(error.value)
    return str(error.value)


def test_days_become_drive_days_once_however_often_they_come(take: Any, lake: Any, tmp_path: Path) -> None:
    """Files of different years, plain and packed, one of them twice; then one day again, with other content."""
    first, second, zipped = tmp_path / "2026-11-01.csv", tmp_path / "2026-11-02.csv.gz", tmp_path / "q.zip"
    first.write_text(day_csv("2026-11-01"))
    second.write_bytes(gzip.compress(day_csv("2026-11-02", failed=(5,), more=SMART[::-1]).encode()))
    (tmp_path / "again.csv").write_text(first.read_text())
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("2026-11-03.csv", day_csv("2026-11-03", more=SMART[1:2]))
        archive.writestr("__MACOSX/._2026-11-03.csv", "date,nonsense")
    code, said = take("backblaze", first, second, tmp_path / "again.csv", zipped)
    assert code == 0
    state = lake.state()
    assert state.dates("imported.drive_day") == ["2026-11-01", "2026-11-02", "2026-11-03"]
    rows = lake.read("imported.drive_day", state).persist()
    assert {row["date"]: row["count"] for row in rows.groupBy("date").count().collect()} == dict.fromkeys(
        state.dates("imported.drive_day"), 110
    )
    odd = {
        row.drive: row for row in rows.where("date = '2026-11-01'").where("drive in ('S0','S3','S4','S6')").collect()
    }
    assert odd["S0"].model == HOSTILE
    assert odd["S3"].capacity_bytes is None
    assert (odd["S4"].smart_poh, odd["S4"].smart_realloc) == (None, 4)
    assert (odd["S6"].smart_poh, odd["S6"].smart_realloc, odd["S6"].capacity_bytes) == (9_000, 6, 4 * 10**12)
    assert odd["S6"].smart_command_timeout == 2
    # Columns in another order, and columns that are not there, stay what they are.
    assert rows.where("date = '2026-11-02' AND drive = 'S6'").first().smart_realloc == 6
    assert rows.where("date = '2026-11-03' AND drive = 'S6'").first().smart_poh is None
    assert rows.where("failed = 1").count() == 1
    rows.unpersist()
    text = "\n".join(said)
    assert "440 rows read, 330 in the lake of these dates" in text
    assert "4 with a capacity below zero" in text
    assert "3 with power-on hours beyond" in text
    assert "\x1b" not in text and "\u2028" not in text
    assert ["all", "330", "1"] in [line.split()[:3] for line in said]

    first.write_text(day_csv("2026-11-01", drives=50))
    assert take("backblaze", first)[0] == 0
    after = lake.state()
    assert [piece.rows for piece in after.pieces("imported.drive_day")] == [50, 110, 110]
    assert len(after.retired) == 1


def test_packed_raw_values_are_unpacked_as_an_agent_unpacks_those_of_its_disks(spark: Any) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from kjbod.fleet.imports.packed import count_of

    columns = [
        count_of(name, F.lit(raw).cast("bigint"))
        for number, raw, _ in VALUES
        for name in (f"smart_{number}_raw", f"r_{number}")
    ]
    found = spark.range(1).select(*columns, count_of("n_188", F.lit(1 << 33)), count_of("r_program", F.lit(None)))
    assert list(found.first()) == [count for _, _, count in VALUES for _ in range(2)] + [1 << 33, None]


def test_a_few_bad_rows_are_set_aside_and_many_refuse_the_file(take: Any, lake: Any, tmp_path: Path) -> None:
    path = tmp_path / "days.csv"
    path.write_text(day_csv("2026-10-01") + "2026-13-45,S900,M1,1,0,0,0,0,0,0,0\n")
    code, said = take("backblaze", path)
    assert code == 1
    assert "1 row set aside, such as one of days.csv with the date '2026-13-45'" in said
    path.write_text(day_csv("2026-10-01") + "2026-10-01,,M1,1,0,0,0,0,0,0,0\n" * 9)
    assert "9 of 119 rows cannot be used, such as one of days.csv with the serial_number ''" in refused(
        take, lake, "backblaze", path
    )


def test_what_is_no_such_file_is_named_in_one_line(take: Any, lake: Any, tmp_path: Path) -> None:
    def file(name: str, content: bytes) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    good = day_csv("2026-09-01").encode()
    said = refused(take, lake, "backblaze", file("other.csv", b"date,model,failure\n"))
    assert "other.csv is not a CSV file of backblaze" in said and "no column serial_number, capacity_bytes" in said
    assert "no such file" in refused(take, lake, "backblaze", tmp_path / "not-there.csv")
    assert "empty.csv is empty" in refused(take, lake, "backblaze", file("empty.csv", b""))
    assert "no rows" in refused(take, lake, "backblaze", file("head.csv", good.split(b"\n")[0] + b"\n"))
    assert "cannot be unpacked" in refused(take, lake, "backblaze", file("no.zip", good))
    assert "not a CSV file of alibaba" in refused(take, lake, "alibaba", file("good.csv", good))
    torn = file("torn.csv.gz", gzip.compress(good)[:-200])
    from kjbod.fleet.command import spark_errors

    before = lake.state()
    with pytest.raises(FleetError), spark_errors():
        take("backblaze", torn)
    assert lake.state() == before


def test_an_archive_is_unpacked_where_there_is_no_pandas(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kjbod.fleet.imports.sources import files_of, lines_of

    with zipfile.ZipFile(tmp_path / "tickets.zip", "w") as archive:
        archive.writestr("a.csv", "model,failure_time,disk_id,node_id,rack_id\nA2,2018-01-02 19:15:32,1,n1,r1\n")
    monkeypatch.setitem(sys.modules, "pandas", None)  # PySpark would warn, and a warning is an error here
    (lines,) = lines_of(spark, "alibaba", files_of(spark, [str(tmp_path / "tickets.zip")]))
    assert [(row.value, row.file) for row in lines.text.collect()] == [("A2,2018-01-02 19:15:32,1,n1,r1", "a.csv")]


def test_tickets_are_there_once(take: Any, lake: Any, tmp_path: Path) -> None:
    head = "model,failure_time,failure,app,r_5,n_5,n_wearout,disk_id,node_id,rack_id,machine_room_id\n"
    rows = ["A2,2018-01-02 19:15:32,1,RM,3,100,97,1,n1,r1,m1\n", "A2,2018-01-02 19:40:00,1,RM,,,,2,n1,r1,m1\n"]
    later = ["B1,2018-02-02 00:00:00,1,RM,,,,3,n1,r1,m1\n", "B1,2018-02-02 00:30:01,1,RM,,,,4,n2,r1,m1\n"]
    (tmp_path / "one.csv").write_text(head + "".join(rows))
    (tmp_path / "two.csv").write_text(head + "".join([*rows[1:], *later]))
    take("alibaba", tmp_path / "one.csv")
    code, said = take("alibaba", tmp_path / "two.csv")
    assert code == 0
    found = lake.read("imported.ticket", lake.state()).orderBy("ts").collect()
    assert [row.drive for row in found] == ["1", "2", "3", "4"]
    assert found[0].smart == {"r_5": 3, "n_wearout": 97} and found[1].smart == {}
    assert said[-1].startswith(
        "4 tickets; with another within 30 minutes in the same host 50.00 %, in the same rack 50.00 %"
    )


def test_tickets_are_not_replaced_by_those_who_did_not_see_them() -> None:
    from kjbod.fleet.imports.importing import with_imported

    first, second = (Piece(f"imported/ticket/date=all/{name}", ALL_DATES, (), 2) for name in ("one", "two"))
    empty = State("x")
    with pytest.raises(LostPiecesError):
        with_imported(with_imported(empty, "alibaba", [first], empty), "alibaba", [second], empty)


def test_an_archive_that_unpacks_to_too_much_is_refused() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", "date\n")
    assert zip_lines(buffer.getvalue()) == [("a.csv", None, ["date"])]
    lying = bytearray(buffer.getvalue())
    central = lying.index(b"PK\x01\x02")
    lying[central + 24 : central + 28] = (UNPACKED_BYTES_MAX + 1).to_bytes(4, "little")
    [(_, wrong, lines)] = zip_lines(bytes(lying))
    assert wrong is not None and "unpacks to more than" in wrong and lines == []


def test_a_column_that_is_there_twice_is_named() -> None:
    with pytest.raises(FleetError, match="'failure' twice"):
        header("backblaze", "date,serial_number,model,capacity_bytes,failure,FAILURE", "x.csv")


def test_the_failure_rates_of_36_models_are_the_published_ones() -> None:
    from kjbod.fleet.insight.statistics import rate

    with shared("backblaze-afr-2025.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 36
    for row in rows:
        afr = rate(int(row["drive_days"]), int(row["failures"])).afr_pct
        assert afr is not None and abs(afr - float(row["afr_pct"])) < 0.0051, row["model"]
    whole = rate(sum(int(row["drive_days"]) for row in rows), sum(int(row["failures"]) for row in rows))
    assert [round(v or 0, 3) for v in (whole.afr_pct, whole.low_pct, whole.high_pct)] == [1.363, 1.323, 1.404]


@only_deep("ten days of 21,000 drives take half a minute")
def test_ten_real_days_and_all_real_tickets(take: Any, lake: Any) -> None:
    _, said = take("backblaze", shared("backblaze-2013-04-10_19.csv.gz"))
    assert ["all", "214,332", "28", "4.77", "3.17", "to", "6.89"] in [line.split() for line in said]
    _, said = take("alibaba", shared("alibaba-ssd-failure-tag.csv.zip"))
    assert "same host 12.88 %, in the same rack 18.30 %" in said[-1]
