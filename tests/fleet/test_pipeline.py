"""From generated reports to the page, by the commands of the README, against the ledger of what really happened."""

import contextlib
import gzip
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kjbod.cli.main import run
from kjbod.fleet.command import Running, spark_errors
from kjbod.fleet.gen import ledger as books
from kjbod.fleet.lake.lake import Lake, open_lake
from kjbod.fleet.report_names import base_name, partition_path
from kjbod.fleet.schema import SAMPLES, DirectoryState, Sample
from kjbod_host.files.report_files import finished_content
from tests.pages.markdown import Page

pytestmark = pytest.mark.usefixtures("with_spark")

SMALLER = {"--hosts 50": "--hosts 24", "--days 3": "--days 1 --hours 9..15 --disks 2 --every 1800"}
"""What a line of the page asks for, and what is enough to see that it works: the hours with the bursts."""
HOURS_MS = (9 * 3_600_000, 15 * 3_600_000)


@dataclass(frozen=True)
class Pipeline:
    """A lake that was made by the page's lines."""

    base: Path
    truth: books.Ledger
    codes: dict[str, int]
    lake: Lake

    @property
    def failures(self) -> list[books.Failure]:
        """Those that the reports tell of."""
        begin, end = (self.truth.start_ts + at for at in HOURS_MS)
        return [failure for failure in self.truth.failures if begin <= failure.ts < end]

    def rows(self, table: str) -> list[dict[str, Any]]:
        return [row.asDict(recursive=True) for row in self.lake.read(table, self.lake.state()).collect()]


def typed(line: str, base: Path) -> list[str]:
    """Arguments of a line of the page, for a smaller fleet below ``base``."""
    for asked, enough in SMALLER.items():
        line = line.replace(asked, enough)
    line = line.replace("--lake URI", "--lake lake")
    program, *words = shlex.split(line, comments=True)
    assert (program, words[0]) == ("kjbod", "fleet")
    return [
        str(base / word) if word in ("lake", "fleet", "page") and place else word for place, word in enumerate(words)
    ]


def add_virtual_hosts(root: Path, start_ms: int) -> None:
    """Two virtual machines whose four disks report one serial number, and a disk of which nothing can be read."""
    for number, host in enumerate(("vm-1", "vm-2"), 901):
        for seq, hour in enumerate(range(9, 15)):
            at_ms = start_ms + hour * 3_600_000 + 900_000
            known: dict[str, Any] = {"ts": at_ms, "mono_ns": seq * 10**9, "boot_id": f"{host}-boot", "seq": seq}
            known |= {"fleet": "virtual", "host": host, "broker_id": number}
            rows = [
                Sample(
                    **known,
                    path=f"/d{disk}",
                    state=DirectoryState.ONLINE,
                    dir_id=f"{host}-d{disk}-AAAAAAAAAAAAA",
                    device=f"vd{disk}",
                    serial="QEMU HARDDISK",
                    bytes_total=10**12,
                    bytes_used=(100 * disk + seq) * 10**9,
                )
                for disk in (1, 2)
            ]
            rows.append(Sample(**known, path="/d3", state=DirectoryState.UNREADABLE))
            path = root / partition_path(SAMPLES, at_ms) / f"{base_name(host, known['boot_id'], at_ms, 0)}.jsonl.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            text = "".join(f"{row.to_json_line()}\n" for row in rows)
            path.write_bytes(gzip.compress(finished_content(text.encode(), recovered=False), mtime=0))


@pytest.fixture(scope="module")
def made(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    @contextlib.contextmanager
    def shared(_running: Running, _input_bytes: int = 0) -> Iterator[Any]:
        """One session for all commands: each would start a Java of its own."""
        with spark_errors():
            yield spark

    base = tmp_path_factory.mktemp("pipeline")
    codes = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Running, "session", shared)
        for command in Page("kjbod/fleet/README.md").commands():
            if command.section == "try-it":
                words = typed(command.text, base)
                codes[words[1]] = run(words)
                if words[1] == "gen":
                    truth = books.from_json((base / "fleet" / books.FILE_NAME).read_text())
                    add_virtual_hosts(base / "fleet", truth.start_ts)
        yield Pipeline(base, truth, codes, open_lake(spark, str(base / "lake")))


@pytest.mark.every_run
def test_each_line_of_the_page_does_what_it_says(made: Pipeline) -> None:
    assert made.codes == dict.fromkeys(("gen", "ingest", "rollup", "verify", "report", "query"), 0)


def test_the_failures_of_the_lake_are_those_of_the_ledger(made: Pipeline) -> None:
    offsets = {a.host: int(a.detail or 0) for a in made.truth.agents if a.what == "clock"}
    found = Counter((row["host"], row["path"], row["serial"], row["ts"]) for row in made.rows("gold.incident"))
    told = Counter((f.spot.host, f.spot.path, f.spot.serial, f.ts + offsets.get(f.spot.host, 0)) for f in made.failures)
    assert found == told and told


def test_what_became_of_each_failure_is_as_in_the_ledger(made: Pipeline) -> None:
    outcomes = {(row["host"], row["dir_id"]): row["outcome"] for row in made.rows("gold.incident")}
    for failure in made.failures:
        expected = "timeout shutdown" if failure.timeout_ts else "acknowledged"
        assert outcomes[(failure.spot.host, failure.spot.dir_id)] == expected


def test_a_file_that_was_uploaded_again_is_there_once(made: Pipeline) -> None:
    again = [row["file"] for row in made.rows("audit.files") if row["status"] == "repeated"]
    assert sorted(again) == sorted(made.truth.copies) and again


def test_the_page_shows_each_disk_that_is_dead_now(made: Pipeline) -> None:
    silent = {a.host for a in made.truth.agents if a.what in ("silent", "stopped")}
    dead = [
        f
        for f in made.failures
        if not f.replaced_ts and not f.well_again_ts and not f.timeout_ts and f.spot.host not in silent
    ]
    html = (made.base / "page" / "index.html").read_text()
    assert dead and [f.spot.serial for f in dead if f.spot.serial not in html] == []
    assert all(host in html for host in silent)
    report = json.loads((made.base / "page" / "report.json").read_text())
    assert report["verdicts"]["failures"] == sum(row["failed"] for row in made.rows("gold.drive_day"))
    assert report["failures"] <= report["verdicts"]["failures"]
    assert report["drive_days"] == len(made.rows("gold.drive_day"))


def test_the_page_shows_each_broker_whose_partitions_lack_replicas_now(made: Pipeline) -> None:
    until = made.truth.start_ts + HOURS_MS[1]
    lacking = {
        lack.host
        for lack in made.truth.lacks
        if lack.since_ts < until and (lack.until_ts is None or lack.until_ts > until)
    }
    ended = {lack.host for lack in made.truth.lacks if lack.until_ts is not None and lack.until_ts < until} - lacking
    report = json.loads((made.base / "page" / "report.json").read_text())
    assert {lack["host"] for lack in report["lacks"]} == lacking and lacking and ended
    html = (made.base / "page" / "index.html").read_text()
    assert all(lack["reason"] in html for lack in report["lacks"])


# --- beside an independent computation


RAW = """
CREATE MACRO raw(stream) AS TABLE
    SELECT * FROM read_json('{root}/' || stream || '/**/*.jsonl*', format = 'newline_delimited', columns = {columns},
        hive_partitioning = false)
    WHERE host IS NOT NULL;
CREATE TABLE sample AS
    SELECT *, ts // 3600000 AS hour FROM (
        SELECT DISTINCT ON (fleet, host, broker_id, dir_id, path, boot_id, seq, ts // 3600000) * FROM raw('samples')
    );
CREATE TABLE verdict AS
    SELECT DISTINCT fleet, host, path, dir_id, serial, ts // 3600000 AS hour FROM raw('events')
    WHERE kind = 'dir_failed';
-- A serial number that several hosts of a cluster have on one day is nobody's.
CREATE TABLE shared AS
    SELECT fleet, serial, count(DISTINCT host) AS hosts, count(DISTINCT (host, path)) AS directories FROM sample
    WHERE serial IS NOT NULL GROUP BY ALL HAVING count(DISTINCT host) > 1;
CREATE TABLE place AS
    SELECT fleet, host, path, dir_id, max(serial) AS serial FROM (
        SELECT fleet, host, path, dir_id, serial FROM sample
        UNION ALL SELECT fleet, host, path, dir_id, serial FROM verdict
    ) GROUP BY ALL;
CREATE TABLE named AS
    SELECT place.*,
        CASE WHEN shared.serial IS NULL THEN coalesce(place.serial, dir_id) ELSE host || ':' || path END AS drive
    FROM place LEFT JOIN shared USING (fleet, serial);
CREATE TABLE hourly AS
    SELECT named.fleet, named.host, named.path, drive, hour,
        count(*) FILTER (state NOT IN ('failed', 'unreadable')) AS living, bool_and(state = 'online') AS online
    FROM sample JOIN named ON sample.fleet = named.fleet AND sample.host = named.host AND sample.path = named.path
        AND sample.dir_id IS NOT DISTINCT FROM named.dir_id
    WHERE drive IS NOT NULL GROUP BY ALL;
"""


@dataclass(frozen=True)
class Raw:
    """The raw lines of the reports in DuckDB, which shares nothing with the pipeline."""

    base: Any

    def ask(self, query: str) -> Any:
        """The one row that a query has."""
        (row,) = self.base.sql(query).fetchall()
        return row if len(row) > 1 else row[0]


@pytest.fixture(scope="module")
def raw(made: Pipeline) -> Iterator[Raw]:
    duckdb = pytest.importorskip("duckdb", reason="the second opinion needs DuckDB: scripts/setup --dev")
    texts = ("boot_id", "fleet", "host", "dir_id", "path", "device", "serial", "state", "kind", "event_id")
    numbers = ("ts", "seq", "broker_id", "bytes_total", "bytes_used")
    kinds = dict.fromkeys(texts, "VARCHAR") | dict.fromkeys(numbers, "BIGINT")
    with duckdb.connect() as base:
        base.execute(RAW.format(root=made.base / "fleet", columns=kinds))
        yield Raw(base)


def test_counts_and_space_are_those_that_duckdb_finds_in_the_raw_lines(made: Pipeline, raw: Raw) -> None:
    report = json.loads((made.base / "page/report.json").read_text())
    assert raw.ask("SELECT count(*) FROM sample") == report["counts"]["samples"]
    directories = raw.ask("SELECT count(DISTINCT (fleet, host, broker_id, path)) FROM sample")
    assert directories == report["counts"]["directories"]
    assert raw.ask("SELECT count(DISTINCT (fleet, host, broker_id)) FROM sample") == report["counts"]["agents"]
    # Of a disk that cannot be read, that which was seen last.
    space = """
        SELECT sum(last.bytes_used)::BIGINT, sum(last.bytes_total)::BIGINT FROM (
            SELECT arg_max({bytes_used: bytes_used, bytes_total: bytes_total}, ts) AS last FROM sample
            WHERE bytes_total IS NOT NULL AND bytes_used IS NOT NULL GROUP BY fleet, host, broker_id, path)"""
    used, total = raw.ask(space)
    assert (used, total) == (report["counts"]["bytes_used"], report["counts"]["bytes_total"])
    assert (used, total) == (report["capacity"]["bytes_used"], report["capacity"]["bytes_total"])


def test_drives_and_failures_are_those_that_duckdb_finds_in_the_raw_lines(made: Pipeline, raw: Raw) -> None:
    report = json.loads((made.base / "page/report.json").read_text())
    exposed = """
        SELECT count(DISTINCT (fleet, drive)) FROM (
            SELECT fleet, drive FROM hourly WHERE living > 0
            UNION ALL SELECT fleet, drive FROM verdict JOIN named USING (fleet, host, path, dir_id))"""
    assert raw.ask(exposed) == report["drive_days"] == report["reliability"]["drives"]
    failed = """
        SELECT fleet, host, path, drive, max(hour) AS hour
        FROM verdict JOIN named USING (fleet, host, path, dir_id) GROUP BY ALL"""
    assert raw.ask(f"SELECT count(DISTINCT (fleet, drive)) FROM ({failed})") == report["verdicts"]["failures"]
    # The disk did not bear a verdict out when it was online through an hour after it, which was its last one.
    well = f"""
        SELECT count(*) FROM ({failed}) AS f WHERE EXISTS (
            SELECT * FROM hourly AS h WHERE (h.fleet, h.host, h.path, h.drive) = (f.fleet, f.host, f.path, f.drive)
            AND h.online AND h.hour > f.hour
            AND h.hour = (
                SELECT max(hour) FROM hourly AS l WHERE (l.fleet, l.host, l.path) = (f.fleet, f.host, f.path)))"""
    wrong = raw.ask(well)
    assert wrong > 0 and report["verdicts"]["failures"] - wrong == report["failures"]
    assert report["own_work"]["false_verdicts"] == wrong


def test_serial_numbers_of_several_hosts_are_those_that_duckdb_finds(made: Pipeline, raw: Raw) -> None:
    report = json.loads((made.base / "page/report.json").read_text())
    found = [(s["fleet"], s["serial"], s["hosts"], s["directories"]) for s in report["data"]["shared_serial_list"]]
    assert found == raw.base.sql("SELECT * FROM shared ORDER BY ALL").fetchall()
    assert found == [("virtual", "QEMU HARDDISK", 2, 4)] and report["data"]["shared_serials"] == 1
    drives = {row["drive"] for row in made.rows("gold.drive_day") if row["fleet"] == "virtual"}
    assert drives == {f"{host}:/d{disk}" for host in ("vm-1", "vm-2") for disk in (1, 2)}


def test_drive_days_under_ten_thousand_have_no_rate(made: Pipeline) -> None:
    report = json.loads((made.base / "page/report.json").read_text())
    assert report["drive_days"] < 1_000
    assert (report["afr_pct"], report["afr_low_pct"], report["afr_high_pct"]) == (None, None, None)
    assert report["verdicts"]["afr_pct"] is None


# --- again, and kept


def test_what_is_done_again_changes_nothing(made: Pipeline) -> None:
    before = made.lake.state()
    assert run(typed("kjbod fleet ingest --lake lake --reports fleet", made.base)) == 0
    assert run(typed("kjbod fleet rollup --lake lake", made.base)) == 0
    assert made.lake.state() == before


def test_a_lake_is_kept_by_the_lines_of_its_page(made: Pipeline, spark: Any) -> None:
    before = {table: len(made.rows(table)) for table in ("silver.events", "gold.dir_hour", "gold.incident")}
    lines = [c.text for c in Page("kjbod/fleet/README.md").commands() if c.section == "upkeep-of-a-lake"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Running, "session", lambda _running, _bytes=0: contextlib.nullcontext(spark))
        codes = {line: run(typed(line, made.base)) for line in lines}
    assert set(codes.values()) == {0} and len(codes) == 5
    assert {table: len(made.rows(table)) for table in before} == before
    assert max(map(len, made.lake.state().tables["gold.dir_hour"].values())) == 1, "compacted"


SETTINGS = {"KJBOD_LAKE", "KJBOD_REPORTS", "KJBOD_PAGE", "KJBOD_PAGE_DAYS", "KJBOD_SILVER_DAYS", "KJBOD_GOLD_DAYS"}


@pytest.mark.parametrize("unit", ["ingest", "page", "upkeep"])
def test_the_units_run_commands_that_there_are_with_what_their_page_sets(unit: str) -> None:
    page = Path("systemd/README.md").read_text()
    settings = dict(re.findall(r"\b(KJBOD_[A-Z_]+)=(\S+)", page))
    assert settings.keys() >= SETTINGS
    text = Path(f"systemd/kjbod-fleet-{unit}.service").read_text()
    lines = re.findall(r"^ExecStart=-?(\S.*)$", text, re.MULTILINE)
    for line in lines:
        program, *words = shlex.split(re.sub(r"\$\{(\w+)\}", lambda name: settings[name[1]], line))
        assert program == "/opt/kjbod/bin/kjbod"
        assert run([*words, "--help"]) == 0
    assert "EnvironmentFile=/etc/kjbod/fleet.env\n" in text and "> /etc/kjbod/fleet.env" in page
    assert len(lines) == (3 if unit == "upkeep" else 1)
    # 1 is work that was done with something set aside; where a count differs it must stop what would delete.
    assert ("SuccessExitStatus=1\n" in text) == (unit != "upkeep")
