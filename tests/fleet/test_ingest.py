"""Ingest: one inbox with everything that goes wrong in it, taken once; then what happens to it and to the lake."""

import gzip
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.schema import EVENTS, SAMPLES
from kjbod_host.files.report_files import finished_content
from tests.depth import at, only_deep
from tests.fleet.conftest import Agent
from tests.fleet.parts import drawn

pytestmark = [pytest.mark.usefixtures("with_spark"), drawn("ingest")]

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def samples(host: str, boot: str = "aaaaaaaa-1", count: int = 4, at_ms: int = 0, broker_id: int = 1) -> list[str]:
    agent = Agent(host, broker_id, boot)
    for seq in range(count):
        agent.sample(at_ms + seq * 1_000, seq, "/d1")
    return agent.lines[SAMPLES]


def content(lines: list[str], *, recovered: bool = False) -> bytes:
    return finished_content("".join(f"{line}\n" for line in lines).encode(), recovered=recovered)


def put(root: Path, name: str, data: bytes, folder: str = "samples/date=2026-11-01/hour=12") -> Path:
    path = root / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def name(host: str, ending: str = ".jsonl.gz", hour: str = "2026110112") -> str:
    return f"{host}.aaaaaaaa.{hour}.0{ending}"


class Story:
    """A lake and its inbox."""

    def __init__(self, spark: Any, root: Path) -> None:
        from kjbod.fleet.lake.lake import open_lake

        self.spark = spark
        self.inbox = root / "in box"
        (self.inbox / "samples").mkdir(parents=True, exist_ok=True)
        self.lake = open_lake(spark, str(root / "lake"), create=True)
        self.said: list[str] = []

    def ingest(self, *inboxes: Path, **how: Any) -> Any:
        from kjbod.fleet.ingest.stream import ingest_into

        return ingest_into(self.spark, self.lake, map(str, inboxes or (self.inbox,)), self.said.append, **how)

    def rows(self, table: str = "silver.samples") -> list[dict[str, Any]]:
        return [row.asDict(recursive=True) for row in self.lake.read(table, self.lake.state()).collect()]

    def statuses(self) -> dict[str, str]:
        return {row["file"]: row["status"] for row in self.rows("audit.files")}


@pytest.fixture(scope="module")
def taken(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Story, Any]]:
    """An inbox with all that was ever seen in one, taken once."""
    story = Story(spark, tmp_path_factory.mktemp("taken"))
    box = story.inbox
    agent = Agent("mixed", 7, "aaaaaaaa-7")
    agent.start()
    agent.sample(0, 0, "/d1")
    agent.write(box)  # samples and events of one name
    whole = gzip.compress(content(samples("torn", count=500)))
    put(box, name("torn"), whole[: len(whole) * 2 // 3])
    packed = zstandard.compress(content(samples("tornzst", count=500)))
    put(box, name("tornzst", ".jsonl.zst"), packed[: len(packed) * 2 // 3])
    put(box, name("zst", ".jsonl.zst"), zstandard.compress(content(samples("zst"))))
    put(box, name("odd %+ü#", ".jsonl.gz"), gzip.compress(content(samples("odd"))))
    put(box, name("junk"), os.urandom(300))
    put(box, name("empty"), b"")
    put(box, name("temporary") + ".tmp", gzip.compress(b"not yet\n"))
    put(box, "." + name("hidden"), gzip.compress(content(samples("hidden"))))
    old = put(box, name("old"), gzip.compress(content(samples("old"))))
    os.utime(old, (1_000_000_000, 1_000_000_000))
    copied = gzip.compress(content(samples("copied")))
    put(box, name("copied"), copied)
    put(box, name("copied"), copied, "samples/again")
    later = [json.dumps(json.loads(line) | {"v": 9, "new": {"a": [1, "x"]}}) for line in samples("later")]
    put(box, name("later"), gzip.compress(content(later)))
    known = ("ts", "mono_ns", "boot_id", "seq", "fleet", "host", "broker_id", "path", "state")
    earlier = [json.dumps({k: v for k, v in json.loads(line).items() if k in known}) for line in samples("earlier")]
    put(box, name("earlier"), gzip.compress(content(earlier)))
    put(box, name("skewed"), gzip.compress(content(samples("skewed", at_ms=7 * HOUR_MS))))
    good = samples("bad")
    far = json.dumps(json.loads(good[0]) | {"ts": 5_000_000_000_000, "seq": 99})
    put(box, name("bad"), gzip.compress(b"".join([b"junk\n", far.encode() + b"\n", content(good)])))
    altered = content(samples("altered")).replace(b'"seq":1', b'"seq":7')
    put(box, name("altered"), gzip.compress(altered))
    scattered = [line for day in range(150) for line in samples("scattered", count=1, at_ms=-day * DAY_MS)]
    put(box, name("scattered"), gzip.compress(content(scattered)))
    plain = samples("long")
    put(box, name("long", ".jsonl"), f"{plain[0]}\n{'x' * 3_000_000}\n{plain[1]}\n".encode())
    lines = samples("longer", count=20)
    for number, length in ((3, 2**20), (7, 2**20 + 1), (19, 5_000_000)):  # JSON of so many bytes, the first is good
        lines[number] = json.dumps(json.loads(lines[number]) | {"firmware": ""})
        lines[number] = lines[number].replace(
            '"firmware": "', '"firmware": "' + "\u00e4" + "n" * (length - len(lines[number]) - 2)
        )
    put(box, name("longer"), gzip.compress(content(lines)))
    put(box, name("same"), gzip.compress(content(samples("same"))))
    put(box, name("same").replace("aaaa.", "bbbb."), gzip.compress(content(samples("same", "bbbb-1", broker_id=2))))
    put(box, name("nobody"), gzip.compress(content(samples("nobody"))), "other/place")
    yield story, story.ingest()


def test_each_file_gets_its_status(taken: tuple[Story, Any]) -> None:
    story, result = taken
    torn = {"torn", "unreadable"}
    found = {file.split(".")[0]: status for file, status in story.statuses().items()}
    assert found.pop("torn") in torn
    assert found.pop("tornzst") in torn
    assert found.pop("copied") in {"ok", "repeated"}
    assert found == {
        "mixed": "ok",
        "zst": "ok",
        "odd %+ü#": "ok",
        "junk": "unreadable",
        "empty": "unreadable",
        "old": "ok",
        "later": "ok",
        "earlier": "ok",
        "skewed": "ok",
        "bad": "damaged",
        "altered": "altered",
        "scattered": "scattered",
        "long": "partial",
        "longer": "ok",
        "same": "ok",
    }
    assert result.files["repeated"] == 1
    assert sum(result.files.values()) == len(story.rows("audit.files"))


def test_the_rows_are_those_of_the_kept_files_and_no_other(taken: tuple[Story, Any]) -> None:
    story, result = taken
    count = {host: len(list(rows)) for host, rows in itertools.groupby(sorted(r["host"] for r in story.rows()))}
    four = ("zst", "odd", "old", "copied", "later", "earlier", "skewed", "bad")
    assert count == dict.fromkeys(four, 4) | {"mixed": 1, "long": 2, "longer": 18, "same": 8}
    assert result.rows == {SAMPLES: sum(count.values()), EVENTS: 34}
    assert len(story.rows("silver.events")) == 34


def test_columns_of_a_later_version_are_kept_and_those_an_earlier_one_lacks_are_null(taken: tuple[Story, Any]) -> None:
    rows = taken[0].rows()
    assert {row["_more"] for row in rows if row["host"] == "later"} == {'{"new":{"a":[1,"x"]}}'}
    assert {row["v"] for row in rows if row["host"] == "later"} == {9}
    assert {(row["_more"], row["bytes_used"]) for row in rows if row["host"] == "earlier"} == {(None, None)}
    assert {row["_more"] for row in rows if row["host"] != "later"} == {None}


def test_a_clock_that_is_hours_off_is_marked_and_its_hour_touched(taken: tuple[Story, Any]) -> None:
    story, result = taken
    assert {row["host"] for row in story.rows() if row["_skewed"]} == {"skewed"}
    assert result.hours == ("2026-11-01T12", "2026-11-01T19")
    assert set(story.lake.state().touched) == set(result.hours)


def test_each_line_that_was_set_aside_is_in_the_quarantine_with_its_reason(taken: tuple[Story, Any]) -> None:
    rows = taken[0].rows("audit.quarantine")
    by_host = {(row["file"].split(".")[0], row["reason"]) for row in rows}
    assert {("bad", "not JSON"), ("bad", "impossible value"), ("altered", "file is altered")} < by_host
    assert sum(row["reason"] == "file is scattered" for row in rows) == 150
    assert not any('"eof"' in row["line"] for row in rows)
    assert not taken[1].is_clean


def test_of_a_line_that_is_too_long_the_rest_of_its_file_is_taken(taken: tuple[Story, Any]) -> None:
    story, _ = taken
    counts = {r["file"].split(".")[0]: (r["kept"], r["lines"], r["bad_lines"]) for r in story.rows("audit.files")}
    assert (counts["long"], counts["longer"]) == ((True, 3, 1), (True, 20, 2))
    aside = [row for row in story.rows("audit.quarantine") if row["file"].startswith("long")]
    assert [row["reason"] for row in aside] == ["longer than 1,048,576 bytes"] * 3
    assert max(len(row["line"].encode()) for row in aside) <= 2**20, "of a line as long as memory its beginning is kept"


def test_a_line_that_goes_on_after_its_object_is_bad(spark: Any) -> None:
    from kjbod.fleet.ingest.lines import parsed

    first, second = samples("h1", count=2)
    odd = first.replace('"h1"', '"h}{\\"x}{"')  # one object, whose host has in it what lies between two
    whole = [first, odd, first + " ", first + "\r"]
    more = [first + second, first + "\0", first + " x", odd + second]
    rows = [(line, "file:/inbox/samples/a.jsonl", 1) for line in whole + more]
    text = spark.createDataFrame(rows, "value STRING, _uri STRING, _bytes BIGINT").coalesce(1)
    found = [row["_problem"] for row in parsed(text, "file:/inbox").select("_problem").collect()]
    assert found == [None] * len(whole) + ["more than one object"] * len(more)


def test_without_spark_it_is_told_that_nothing_waits(taken: tuple[Story, Any]) -> None:
    from kjbod.fleet.ahead import look_ahead

    story, _ = taken
    found = look_ahead(story.lake.uri, [str(story.inbox)])
    assert found is not None and (found.files, found.is_settled) == (0, True)
    put(story.inbox, name("hidden"), b"12345")
    found = look_ahead(story.lake.uri, [str(story.inbox)])
    (story.inbox / "samples/date=2026-11-01/hour=12" / name("hidden")).unlink()
    assert found is not None and (found.files, found.new_bytes, found.is_settled) == (1, 5, True)


def test_what_is_taken_is_not_taken_again(taken: tuple[Story, Any]) -> None:
    story, _ = taken
    before = story.lake.state()
    assert story.ingest().files == {}
    assert story.lake.state().version == before.version


def test_a_new_run_takes_what_is_whole_by_now_and_doubles_nothing(taken: tuple[Story, Any]) -> None:
    story, _ = taken
    rows = len(story.rows())
    put(story.inbox, name("torn"), gzip.compress(content(samples("torn", count=500))))
    result = story.ingest(rescan=True)
    assert result.rows == {SAMPLES: 500, EVENTS: 0}
    assert result.files["ok"] == 1
    assert len(story.rows()) == rows + 500


def test_a_clock_that_is_days_off_the_name_of_its_file_costs_no_row_and_only_silver_is_left(story: Story) -> None:
    put(story.inbox, name("far"), gzip.compress(content(samples("far", at_ms=3 * DAY_MS))))
    bad = b"\xff\xfe{\n" + content(samples("near"))
    put(story.inbox, name("near"), gzip.compress(bad))
    result = story.ingest()
    found = {(row["host"], row["date"], row["hour"], row["_skewed"]) for row in story.rows()}
    here = {(host, "2026-11-01", "12", False) for host in ("h1", "near")}
    assert found == here | {("far", "2026-11-04", "12", True)}
    assert result.rows == {SAMPLES: 12, EVENTS: 0}
    assert [(row["reason"], row["file"]) for row in story.rows("audit.quarantine")] == [("not UTF-8", name("near"))]
    root = Path(story.lake.uri.removeprefix("file:"))
    folders = {path.parent for path in root.rglob("silver/**/*.parquet")}
    assert folders == {root / p.path / f"hour={p.hours[0]}" for p in story.lake.state().pieces("silver.samples")}


def test_a_file_that_is_set_aside_has_only_its_own_hours_written_again(story: Story) -> None:
    altered = content([*samples("altered", count=2), *samples("altered", at_ms=2 * HOUR_MS)]).replace(
        b'"seq":1', b'"seq":7'
    )
    put(story.inbox, name("altered"), gzip.compress(altered))
    put(story.inbox, name("next"), gzip.compress(content(samples("next", at_ms=HOUR_MS))))
    story.ingest()
    hosts = [(row["host"], row["hour"]) for row in story.rows()]
    assert sorted(set(hosts)) == [("h1", "12"), ("next", "13")] and len(hosts) == 8
    pieces = {piece.hours: piece.path for piece in story.lake.state().pieces("silver.samples")}
    assert pieces.keys() == {("12",), ("13",)}  # 14 has nothing else
    root = Path(story.lake.uri.removeprefix("file:"))
    folders = {path.parent for path in root.rglob("silver/**/*.parquet")}
    assert folders == {root / path / f"hour={hour}" for (hour,), path in pieces.items()}
    (kept,) = (path for hours, path in pieces.items() if hours == ("13",))
    assert "_uri" in story.spark.read.parquet(f"{story.lake.uri}/{kept}").columns  # as it was staged


# --- kills, and lakes and checkpoints that do not fit


class KilledError(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def story(spark: Any, tmp_path: Path) -> Story:
    story = Story(spark, tmp_path)
    put(story.inbox, name("h1"), gzip.compress(content(samples("h1"))))
    return story


STAGES = ["written", "after the commit"]


@pytest.mark.parametrize("stage", at(quick=STAGES, ci=STAGES, deep=["read", *STAGES, "before the commit"]))
def test_an_end_at_any_stage_costs_no_row_and_doubles_none(
    story: Story, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kjbod.fleet.ingest import batch
    from kjbod.fleet.lake.lake import Lake

    commit = Lake.commit

    def die(*_: Any, **__: Any) -> None:
        raise KilledError

    def commit_and_die(self: Any, change: Any, by: str) -> Any:
        after = commit(self, change, by)
        if after.batches:
            raise KilledError
        return after

    with monkeypatch.context() as patch:
        match stage:
            case "read":
                patch.setattr(batch._Batch, "_write_rows", die)
            case "written":
                patch.setattr(type(story.lake.files), "sync", die)
            case "before the commit":
                patch.setattr(batch._Batch, "_change", die)
            case _:
                patch.setattr(Lake, "commit", commit_and_die)
        with pytest.raises(FleetError, match="a batch failed"):
            story.ingest()
    assert len(story.rows()) == (4 if stage == "after the commit" else 0)
    story.ingest()
    assert sorted(row["seq"] for row in story.rows()) == [0, 1, 2, 3]


def test_a_checkpoint_that_is_not_the_lake_s_is_refused_and_a_new_run_mends_it(story: Story) -> None:
    from kjbod.fleet.ingest.checkpoint import noted

    story.ingest()
    root = Path(story.lake.uri.removeprefix("file:"))
    run = noted(story.lake.state(), f"file:{story.inbox}")
    assert run is not None
    checkpoint = root / run.checkpoint
    owner = checkpoint / "kjbod-run.json"
    ours = owner.read_text()
    (checkpoint / ".kjbod-run.json.crc").unlink(missing_ok=True)
    owner.write_text(ours.replace(story.lake.lake_id, "another"))
    with pytest.raises(FleetError, match="of another lake or inbox: run it with --rescan"):
        story.ingest()
    owner.write_text(ours)
    (checkpoint / "offsets" / "0").rename(checkpoint / "offsets" / "x0")
    with pytest.raises(FleetError, match="it is of an older time: run it with --rescan"):
        story.ingest()
    checkpoint.rename(checkpoint.with_name("gone"))
    with pytest.raises(FleetError, match="is not there: run it with --rescan"):
        story.ingest()
    assert story.ingest(rescan=True).files == {"repeated": 1}
    assert len(story.rows()) == 4


def test_only_files_that_the_lake_holds_are_deleted(story: Story) -> None:
    grown = put(story.inbox, name("grown"), gzip.compress(content(samples("grown"))))
    torn = put(story.inbox, name("t"), gzip.compress(content(samples("t", count=500)))[:-900])
    other = put(story.inbox, "notes.txt", b"mine")
    story.ingest()
    grown.write_bytes(gzip.compress(content(samples("grown", count=5))))
    new = put(story.inbox, name("new"), gzip.compress(content(samples("new"))))
    result = story.ingest(delete_ingested=True)
    assert result.deleted == 2  # h1 and new
    assert (grown.exists(), torn.exists(), other.exists(), new.exists()) == (True, True, True, False)
    assert {row["host"] for row in story.rows()} == {"h1", "grown", "new"}


def test_a_file_in_two_inboxes_is_taken_once(story: Story, tmp_path: Path) -> None:
    second = tmp_path / "second"
    put(second, name("h1"), gzip.compress(content(samples("h1"))))
    put(second, name("h2"), gzip.compress(content(samples("h2"))))
    assert story.ingest(story.inbox, second).files == {"ok": 2, "repeated": 1}
    assert len(story.rows()) == 8


def test_an_inbox_that_is_none_or_has_no_folder_yet(story: Story, tmp_path: Path) -> None:
    (tmp_path / "young").mkdir()
    assert story.ingest(tmp_path / "young").files == {}
    with pytest.raises(FleetError, match="no reports directory"):
        story.ingest(tmp_path / "none")
    with pytest.raises(FleetError, match="for a pattern"):
        story.ingest(tmp_path / "a[b]")


def file_status(
    *,
    compressed: bool,
    lines: int,
    good_lines: int,
    crc: int | None,
    good_crc: int | None,
    trailer_rows: int | None,
    trailer_crc: int | None,
    recovered: bool | None,
) -> str:
    """The table on top of :mod:`kjbod.fleet.read`, once more."""
    if trailer_rows is None:
        return ("torn" if compressed else "partial") if lines else "unreadable"
    expected = (trailer_rows, (trailer_crc or 0) % 2**32)
    if (lines, (crc or 0) % 2**32) == expected:
        return "partial" if recovered else "ok"
    if (good_lines, (good_crc or 0) % 2**32) == expected:
        return "damaged"
    if lines < trailer_rows:
        return "torn"
    return "damaged" if good_lines < lines else "altered"


def test_the_status_of_a_file_in_spark_is_that_in_python(spark: Any) -> None:
    from kjbod.fleet.read import status_column

    names = ("compressed", "lines", "good_lines", "crc", "good_crc", "trailer_rows", "trailer_crc", "recovered")
    numbers = (None, 0, 3)
    cases = [
        case
        for case in itertools.product(
            (False, True), (0, 2, 3), (0, 2, 3), (None, 5, 2**32 + 7), (None, 5, 7), numbers, (None, 5, 7), (None, True)
        )
        if case[2] <= case[1]
    ]
    kinds = ("BOOLEAN", *["BIGINT"] * 6, "BOOLEAN")
    ddl = ", ".join(f"{n} {k}" for n, k in zip(names, kinds, strict=True))
    found = spark.createDataFrame(cases, ddl).withColumn("status", status_column()).collect()
    wrong = [row for row in found if row["status"] != file_status(**{n: row[n] for n in names})]
    assert wrong == []


def test_a_line_with_a_number_that_nothing_counts_is_set_aside(spark: Any) -> None:
    from kjbod.fleet.ingest.lines import parsed

    agent = Agent()
    agent.sample(0, 0, agent.paths[0], writes=2**60 - 1, smart_temp_c=-20, probe_histogram={"40": 1})
    good = json.loads(agent.lines[SAMPLES][0])
    absurd = [{"probe_write_us": 2**63 - 1}, {"writes": -1}, {"leaders": 2**60}, {"smart_poh": 2**60}]
    absurd += [{"seq": -(2**63)}, {"mono_ns": 2**63 - 1}]
    histograms = [{"probe_histogram": {"40": n}} for n in (-1, 2**60)]
    lines = [json.dumps(good | more) for more in ({}, *absurd, *histograms)]
    rows = [(line, "file:/inbox/samples/a.jsonl", 1) for line in lines]
    text = spark.createDataFrame(rows, "value STRING, _uri STRING, _bytes BIGINT").coalesce(1)
    assert [row["_problem"] for row in parsed(text, "file:/inbox").collect()] == [None, *8 * ["impossible value"]]


KILL = """
import os, signal, sys
from kjbod.fleet.lake.lake import Lake
from kjbod.cli.main import main
commit = Lake.commit
def die(self, change, by):
    if any(state for state in [change(self.state())] if state.batches):
        os.kill(os.getpid(), signal.SIGKILL)
    return commit(self, change, by)
Lake.commit = die
sys.argv = ["kjbod", "fleet", "ingest", "--master", "local[1]", "--lake", sys.argv[1], "--reports", sys.argv[2]]
main()
"""


@only_deep("starts Spark once more")
def test_a_process_that_is_killed_with_its_data_written_leaves_a_lake_that_the_next_takes_up(story: Story) -> None:
    root = story.lake.uri.removeprefix("file:")
    done = subprocess.run([sys.executable, "-c", KILL, root, str(story.inbox)], capture_output=True, timeout=120)
    assert done.returncode == -9, done.stderr
    assert list(Path(root).glob("silver/samples/run=*/batch=0/*/date=*/hour=*/*.parquet"))
    assert story.rows() == []
    assert story.ingest().files == {"ok": 1}
    assert len(story.rows()) == 4
