"""The report of a lake: what its gold says is on its pages, of the days that were asked for."""

import errno
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.lake.lake import Lake, open_lake
from kjbod.fleet.lake.state import Piece, State
from kjbod.fleet.page.model import FleetReport, host_file
from kjbod.fleet.publishing import publish, workspace
from kjbod.fleet.report import _LAST, _still_dead, dates_of
from kjbod.fleet.report_files import MARKS, OUTPUTS, Wanted, make_files
from tests.fleet.gold_fleet import CRIPPLED, DEAD, DISKS, LEADING, RISKY, SILENT, STOPPED, make_gold
from tests.fleet.parts import drawn

pytestmark = [pytest.mark.usefixtures("with_spark"), pytest.mark.xdist_group("fleet-lake-report"), drawn("lake report")]

HOSTS = 25
NUMBERS = ("state_since", "last_ts", "bytes_total", "used_last", "partitions", "leaders")


@dataclass(frozen=True)
class Made:
    lake: Lake
    out: Path
    report: FleetReport


@pytest.fixture(scope="module")
def made(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    root = tmp_path_factory.mktemp("lake-report")
    lake = open_lake(spark, str(root / "lake"), create=True)
    make_gold(lake, HOSTS, 3)
    out = root / "out"
    out.mkdir()
    yield Made(lake, out, make_files(lake, out, lambda _: None))


def test_what_is_wrong_in_gold_is_what_needs_a_hand(made: Made) -> None:
    found = made.report
    dead = [broker for broker in DEAD if broker <= HOSTS]
    assert {(d.place.broker_id, d.place.path) for d in found.failed} == {
        (LEADING, "/disks/d02"),
        *((broker, "/disks/d04") for broker in dead),
    }
    assert found.failed[0].place.broker_id == LEADING, "it still leads"
    assert "EIO at fsync" in found.failed[0].evidence
    assert [(a.broker_id, a.status) for a in found.agents] == [(SILENT, "silent"), (STOPPED, "stopped")]
    assert [(s.broker_id, s.state, s.reason) for s in found.stands] == [(CRIPPLED, "crippled", "a fetcher is stuck")]
    assert RISKY in {r.place.broker_id for r in found.insights.health.risks}
    assert found.states == {
        "failed": 1 + len(dead),
        "silent": DISKS,
        "stopped": DISKS,
        "slow": 1,
        "online": HOSTS * DISKS - 2 * DISKS - 2 - len(dead),
    }
    assert found.data.bad_files == 1


def test_a_disk_that_nobody_can_read_after_a_restart_is_the_one_that_failed(spark: Any) -> None:
    names = "fleet STRING, host STRING, broker_id BIGINT, path STRING"
    last = ", ".join(f"{n} {'BIGINT' if n in NUMBERS else 'STRING'}" for n in _LAST)
    blank = dict.fromkeys(_LAST)
    spots = [
        (None, "h", 1, "/dead", blank | {"leaders": 0}, "unreadable", 100),
        (None, "h", 1, "/well-since", blank, "unreadable", 900),
        (None, "h", 1, "/never-failed", blank, "unreadable", 100),
        (None, "h", 1, "/slow", blank | {"serial": "S4"}, "slow", 100),
    ]
    fell = [(None, "h", 1, path, 500, "sdf", f"S{path}", "M", "D", 7) for path in ("/dead", "/well-since", "/slow")]
    found = _still_dead(
        spark.createDataFrame(spots, f"{names}, last STRUCT<{last}>, known_state STRING, well_ts BIGINT"),
        spark.createDataFrame(
            fell, f"{names}, ts BIGINT, device STRING, serial STRING, model STRING, dir_id STRING, partitions BIGINT"
        ),
    ).collect()
    shown = {row.path: (row.known_state, row["last"].serial, row["last"].state_since) for row in found}
    assert shown == {
        "/dead": ("failed", "S/dead", 500),
        "/well-since": ("unreadable", None, None),
        "/never-failed": ("unreadable", None, None),
        "/slow": ("slow", "S4", None),
    }


def test_each_host_has_its_page_and_each_link_leads_to_a_file(made: Made) -> None:
    pages = sorted((made.out / "hosts").iterdir())
    assert len(pages) == HOSTS + 1
    one = made.out / "hosts" / host_file("cluster-a", f"kafka-{DEAD[0]:04d}.example.org", DEAD[0])
    text = one.read_text()
    assert "EIO &lt;b&gt;at&lt;/b&gt; fsync" in text and text.count("<script") == 1
    for page in (made.out / "index.html", one, made.out / "hosts/index.html", *(made.out / "models").iterdir()):
        for target in re.findall(r'href="([^"#]+)"', page.read_text()):
            assert (page.parent / target).resolve().is_file(), (page.name, target)
    assert max(page.stat().st_size for page in pages) < 60_000


def test_the_same_lake_makes_the_same_bytes_and_a_report_of_later_says_what_changed(made: Made, tmp_path: Path) -> None:
    early = tmp_path / "early"
    early.mkdir()
    make_files(made.lake, early, lambda _: None, Wanted(to_date="2026-11-02"))
    again = tmp_path / "again"
    again.mkdir()
    later = make_files(made.lake, again, lambda _: None, previous=(early / "report.json").read_text())
    assert later.changes.counts["failed"] == len(made.report.failed)
    same = [path for path in sorted(made.out.rglob("*.html")) if path.name != "index.html"]
    assert same
    for path in same:
        assert path.read_bytes() == (again / path.relative_to(made.out)).read_bytes(), path


@pytest.mark.parametrize(
    ("days", "words"),
    [
        (("yesterday", None), "--from yesterday: not a date"),
        ((None, "2026-02-30"), "--to 2026-02-30: not a date"),
        (("2026-11-03", "2026-11-01"), "is after"),
        (("2030-01-01", None), "no data from 2030-01-01"),
    ],
)
def test_days_that_are_none_are_one_line(made: Made, tmp_path: Path, days: tuple[str, str], words: str) -> None:
    with pytest.raises(FleetError, match=words):
        make_files(made.lake, tmp_path, lambda _: None, Wanted(*days))
    assert list(tmp_path.iterdir()) == []


def test_days_before_the_first_year_are_no_days(tmp_path: Path) -> None:
    state = State("lake").with_pieces("gold.dir_day", [Piece("gold/dir_day/x", "2026-11-01", (), 1)])
    with pytest.raises(FleetError, match="no data from 0001-01-01 to 0001-01-01"):
        dates_of(state, None, "0001-01-01", 30)
    assert dates_of(state, None, None, 10_000_000) == ["2026-11-01"]


def test_a_place_that_is_taken_away_meanwhile_is_said(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="cannot write to"), workspace(tmp_path / "out", MARKS) as work:
        shutil.rmtree(tmp_path / "out")
        (work / "hosts").mkdir()


def test_a_new_report_takes_the_place_of_the_old_one_and_of_nothing_else(tmp_path: Path) -> None:
    out, work = tmp_path / "out", tmp_path / "out/.work"
    (out / "hosts").mkdir(parents=True)
    for path in (out / "hosts/gone.html", out / "mine.txt", out / "index.html"):
        path.write_text("old")
    (work / "hosts").mkdir(parents=True)
    for path in (work / "hosts/new.html", work / "index.html", work / "report.json"):
        path.write_text("new")
    publish(work, out, OUTPUTS)
    assert [path.name for path in (out / "hosts").iterdir()] == ["new.html"]
    assert ((out / "index.html").read_text(), (out / "mine.txt").read_text()) == ("new", "old")


@pytest.mark.parametrize("end", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
@pytest.mark.parametrize("renames", range(5))
def test_a_report_that_cannot_be_put_in_place_whole_leaves_the_old_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int, end: BaseException
) -> None:
    out, work = tmp_path / "out", tmp_path / "out/.work"
    for folder, text in ((out, "old"), (work, "new")):
        (folder / "hosts").mkdir(parents=True)
        for name in ("hosts/index.html", "report.json", "index.html"):
            (folder / name).write_text(text)
    rename, left = Path.rename, [renames]

    def stopped(self: Path, target: Path) -> Path:
        left[0] -= 1
        if left[0] == -1:
            raise end
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", stopped)
    with pytest.raises((KeyboardInterrupt, FleetError)):
        publish(work, out, OUTPUTS)
    assert {(out / name).read_text() for name in ("hosts/index.html", "report.json", "index.html")} == {"old"}


@pytest.mark.parametrize("there", [(), (".x", "lost+found"), ("index.html", "mine.txt"), ("report.json", "events")])
def test_a_report_is_made_in_a_place_that_is_empty_or_has_one(tmp_path: Path, there: tuple[str, ...]) -> None:
    for name in there:
        (tmp_path / name).touch()
    with workspace(tmp_path, MARKS) as work:
        assert work.parent == tmp_path
    assert {path.name for path in tmp_path.iterdir()} == set(there)


@pytest.mark.parametrize("there", ["mine.txt", "samples/date=2026-11-01", "hosts"])
def test_a_report_is_not_made_among_something_else(tmp_path: Path, there: str) -> None:
    (tmp_path / there).mkdir(parents=True)
    with pytest.raises(FleetError, match="is not empty and has no report: give --out"), workspace(tmp_path, MARKS):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [there.split("/")[0]]


def test_json_is_what_the_page_says(made: Made) -> None:
    said = json.loads((made.out / "report.json").read_text())
    assert said["counts"]["directories"] == HOSTS * DISKS
    assert said["drive_days"] == made.report.insights.reliability.whole.drive_days > 0
    assert [group["key"] for group in said["todo"]][:3] == ["led", "silent", "dead"]


def test_a_lake_without_gold_is_one_line(spark: Any, tmp_path: Path) -> None:
    lake = open_lake(spark, str(tmp_path / "lake"), create=True)
    with pytest.raises(FleetError, match="no gold yet"):
        make_files(lake, tmp_path / "out", lambda _: None)
    assert lake.state() == State(lake.lake_id)
