"""Retention deletes what is too old, was verified and is kjbod's; nothing else, whatever is killed."""

import dataclasses
import datetime
import functools
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.lake.state import BATCH, Piece, Retired, State
from kjbod.fleet.tables import SILVER_SAMPLES
from kjbod.fleet.upkeep.account import Compacted, gone, silver_from, with_compacted, with_silver_from
from kjbod.fleet.upkeep.retain import GRACE_MS, LITTER_AGE_MS, Limits, Plan, plan_of
from tests.fleet.parts import drawn
from tests.fleet.upkeep.lakes import DAY, FixedClock, ingest, rows_of, sample

pytestmark = [pytest.mark.usefixtures("with_spark"), drawn("upkeep retain")]

TODAY = datetime.date(2026, 11, 20)
NEXT_DAY = "2026-11-02"
SAMPLES = SILVER_SAMPLES.full_name


def quiet(_text: str) -> None:
    pass


def root_of(lake: Lake) -> Path:
    return Path(lake.uri.removeprefix("file:"))


def at(lake: Lake, wall_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both clocks, the driver's and that of the file system, stand at ``wall_ms``."""
    from kjbod.fleet.upkeep import retain as job

    lake.clock = FixedClock(wall_ms)
    monkeypatch.setattr(job, "_file_system_ms", lambda _lake: wall_ms)


def ms(date: datetime.date) -> int:
    return int(datetime.datetime.combine(date, datetime.time(), datetime.UTC).timestamp() * 1000)


def piece(table: str, date: str, name: str = "0000aaaa-0000", rows: int = 5) -> Piece:
    return Piece(f"{table.replace('.', '/')}/date={date}/{name}", date, ("03",), rows)


def state_with(verified: bool = True, touched: str = "") -> State:
    one = piece("silver.samples", DAY)
    state = State("id").with_pieces("silver.samples", [one]).with_pieces("gold.dir_hour", [piece("gold.dir_hour", DAY)])
    if verified:
        state = with_compacted(state, "silver.samples", DAY, Compacted(one.path, 5, 1, 2))
    return state.with_touched([touched]) if touched else state


def test_silver_goes_when_it_is_old_verified_and_rolled_up() -> None:
    limits = Limits(silver_days=10, gold_days=100)
    plan = plan_of(state_with(), limits, TODAY)
    assert plan.out == (("silver.samples", DAY),) and plan.silver_from == NEXT_DAY
    assert plan_of(state_with(), Limits(silver_days=19), TODAY).out == ()  # the last day that is kept
    assert plan_of(state_with(), Limits(silver_days=18), TODAY).out != ()
    assert plan_of(state_with(), Limits(), TODAY).out == ()


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (state_with(verified=False), "not compacted"),
        (state_with(touched=f"{DAY}T03"), "its gold is not made"),
        (state_with().with_pieces("silver.samples", [piece("silver.samples", DAY, "late")]), "not compacted"),
    ],
)
def test_silver_that_is_not_verified_stays_and_is_named(state: State, why: str) -> None:
    plan = plan_of(state, Limits(silver_days=10, gold_days=11), TODAY)
    assert [(kept.table, kept.date) for kept in plan.kept] == [("silver.samples", DAY)] and why in plan.kept[0].why
    assert ("silver.samples", DAY) not in plan.out and plan.silver_from == ""


def verified(*dates: str, tables: tuple[str, ...] = ("silver.samples", "silver.events")) -> State:
    state = State("id")
    for date in dates:
        for table in tables:
            state = state.with_pieces(table, [piece(table, date)])
            state = with_compacted(state, table, date, Compacted(piece(table, date).path, 5, 1))
    return state


def test_silver_goes_in_the_order_of_dates_up_to_the_first_that_has_to_stay() -> None:
    first, second, third = days = (DAY, NEXT_DAY, "2026-11-03")
    limits = Limits(silver_days=10, gold_days=100)
    state = verified(*days).with_touched([f"{second}T03"])
    plan = plan_of(state, limits, TODAY)
    assert plan.out == (("silver.samples", first), ("silver.events", first)) and plan.silver_from == second
    assert [(kept.date, kept.why[:22]) for kept in plan.kept] == [
        *[(second, "its gold is not made y")] * 2,
        *[(third, "an older date has to s")] * 2,
    ]
    # Its rows came when retention was beyond it: it has to be compacted, and is in nobody's way.
    late = with_silver_from(verified(second, third).with_pieces(SAMPLES, [piece(SAMPLES, first)]), second)
    plan = plan_of(late, limits, TODAY)
    assert {date for _, date in plan.out} == {second, third} and [kept.date for kept in plan.kept] == [first]


def test_a_date_of_silver_goes_with_both_of_its_tables_or_not_at_all() -> None:
    state = verified(DAY, NEXT_DAY).with_pieces("silver.events", [piece("silver.events", DAY, "late")])
    plan = plan_of(state, Limits(silver_days=10, gold_days=100), TODAY)
    assert plan.out == () and plan.silver_from == ""
    whys = {(kept.table, kept.date): kept.why for kept in plan.kept}
    assert len(whys) == 4 and whys[SAMPLES, DAY] == "the other table of this date has to stay"


def test_what_is_ingested_while_silver_is_taken_out_holds_back_its_date_and_those_after_it(tmp_path: Path) -> None:
    from kjbod.fleet.lake.arrow_files import ArrowFiles
    from kjbod.fleet.upkeep.retain import _take_out

    lake = Lake(None, ArrowFiles(str(tmp_path)), "id")  # type: ignore[arg-type]
    seen = lake.commit(lambda _: verified(DAY, NEXT_DAY, "2026-11-03"), "compact")

    def plan_now(state: State) -> Plan:
        return plan_of(state, Limits(silver_days=10, gold_days=100), TODAY)

    lake.commit(lambda now: now.with_touched([f"{NEXT_DAY}T03"]), "ingest")
    state = _take_out(lake, seen, plan_now(seen), plan_now)
    assert state.dates(SAMPLES) == [NEXT_DAY, "2026-11-03"] and silver_from(state) == NEXT_DAY


def test_dates_that_are_yet_to_come_are_kept_and_strange_ones_too() -> None:
    state = State("id").with_pieces("gold.dir_day", [piece("gold.dir_day", d) for d in ("2199-01-01", "all", "0xyz")])
    assert plan_of(state, Limits(silver_days=1, gold_days=1), TODAY).out == ()


def test_gold_is_kept_as_long_as_silver_and_the_audit_as_long_as_all() -> None:
    for limits in (Limits(gold_days=3), Limits(silver_days=4, gold_days=3)):
        with pytest.raises(FleetError, match="--gold-days has to be"):
            limits.checked()
    assert Limits(3, 5, 9).audit_days == 9 and Limits(3, 5).audit_days == 5 and Limits(3).audit_days is None
    assert plan_of(State("id"), Limits(silver_days=10**9), TODAY).out == ()


def test_what_is_too_old_goes_from_the_state_and_an_hour_later_from_the_disk(
    compact_lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kjbod.fleet.upkeep.retain import retain
    from kjbod.fleet.upkeep.verify import verify

    lake, root = compact_lake, root_of(compact_lake)
    now_ms = max(ms(TODAY), lake.state().made_ms)
    today = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC).date()
    limits = Limits(silver_days=(today - datetime.date(2026, 11, 2)).days, gold_days=1000)
    at(lake, now_ms, monkeypatch)
    before = lake.state()
    (old,) = before.pieces("silver.samples", [DAY])

    # only said
    planned = retain(lake, limits, quiet, dry_run=True)
    assert ("silver.samples", DAY) in planned.plan.out and lake.state() == before and planned.rows > 0

    # a kill before the commit
    class KilledError(BaseException):
        pass

    def killed(*_given: Any) -> Any:
        raise KilledError

    with monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(lake.files, "create", killed)
        retain(lake, limits, quiet)
    assert lake.state() == before and (root / old.path).is_dir()

    result = retain(lake, limits, quiet)
    state = lake.state()
    assert state.pieces("silver.samples", [DAY]) == [] and state.pieces("gold.dir_hour", [DAY])
    assert silver_from(state) == NEXT_DAY and gone(state, "silver.samples") == 28
    assert (root / old.path).is_dir() and result.waiting > 0

    # verify knows where the rows went
    assert verify(lake, quiet, sample=1).differences == ()

    # the grace is over: files go, then the state forgets them; a kill between the two is nothing
    at(lake, now_ms + GRACE_MS + 1, monkeypatch)
    for method in ("delete", "create"):
        with monkeypatch.context() as patch, pytest.raises(KilledError):
            patch.setattr(lake.files, method, killed)
            retain(lake, limits, quiet)
        assert all((root / p.path).is_dir() for t in lake.state().tables.values() for ps in t.values() for p in ps)
    retain(lake, limits, quiet)
    assert not (root / old.path).exists() and lake.state().retired == ()
    assert [str(row) for row in lake.read("silver.samples", lake.state(), dates=[NEXT_DAY]).select("seq").collect()]
    version = lake.state().version
    assert retain(lake, limits, quiet).deleted == () and lake.state().version == version

    # what comes late for a date that is gone goes the same way, and does not touch its gold
    ingest(lake, [sample(3, 9, "h7")])
    assert next(kept.why for kept in retain(lake, limits, quiet).plan.kept).startswith("not compacted")


def test_litter_goes_by_its_place_its_name_and_its_age_and_nothing_else_does(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kjbod.fleet.upkeep.retain import retain

    root, rows = root_of(lake), rows_of(lake, SILVER_SAMPLES)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "part-0.parquet").write_text("precious")

    def make(path: str, name: str = "part-00000-x.c000.zstd.parquet") -> Path:
        folder = root / path
        folder.mkdir(parents=True)
        (folder / name).write_text("x")
        return folder

    batch = "silver/events/run=r1/batch=8/0000aaaa-0000"
    counts = Piece(f"{batch}/date={DAY}", DAY, ("03",), 1, BATCH)
    make(f"{counts.path}/hour=03")
    lake.commit(lambda state: state.with_pieces("silver.events", [counts]), "ingest")
    litter = [
        make(f"silver/samples/date={DAY}/0123abcd-0123"),
        make("gold/dir_hour/date=2026-11-05/hour=03/0123abcd-4567"),
        make("gold/drive_life/date=all/0123abcd-4567/_temporary/0"),
        make("silver/events/run=r1/batch=7/date=2026-11-01/hour=03"),
        make(f"{batch}/date=all/hour=00"),  # lines that ingest staged, beside rows that count
        make(f"{batch}/date=2026-11-07/hour=00"),  # rows that ingest staged, of files that are not kept
        make("gold/dir_hour/89ab0123-4567/on=2026-11-05/at=03"),
    ]
    foreign = [
        make(f"silver/samples/date={DAY}/my-backup"),
        make("gold/mine/0123abcd-0123"),
        make("mine/0123abcd-0123"),
        make(f"gold/dir_hour/date={DAY}/aaaaaaaa-aaaa", "notes.txt"),
    ]
    linked = root / f"gold/dir_day/date={DAY}/bbbbbbbb-bbbb"
    linked.symlink_to(outside)
    holds_link = make(f"gold/dir_day/date={DAY}/cccccccc-cccc")
    (holds_link / "part-1").symlink_to(outside)
    (root / "imported").symlink_to(outside)
    named = {p.path for t in lake.state().tables.values() for ps in t.values() for p in ps}

    now_ms = max(entry.stat().st_mtime_ns // 10**6 for entry in root.rglob("*"))
    at(lake, now_ms, monkeypatch)
    assert retain(lake, Limits(), quiet).deleted == ()  # it may be being written
    at(lake, now_ms + LITTER_AGE_MS + 1000, monkeypatch)
    retired = {one.path for one in lake.state().retired}
    assert len(set(retain(lake, Limits(), quiet).deleted) - retired) == len(litter)

    assert not any(path.exists() for path in litter)
    assert not (root / "gold/dir_hour/89ab0123-4567").exists()
    assert all(path.is_dir() and list(path.iterdir()) for path in (*foreign, holds_link))
    assert linked.is_symlink() and (outside / "part-0.parquet").read_text() == "precious"
    assert all((root / path).is_dir() for path in named)
    assert rows_of(lake, SILVER_SAMPLES) == rows


@pytest.mark.parametrize(
    "path", ["../outside", "gold/dir_day/../../../outside/aaaaaaaa-aaaa", "_live", "gold/dir_day", "x"]
)
def test_a_state_that_somebody_edited_deletes_nothing_else(
    lake: Lake, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kjbod.fleet.upkeep.retain import retain

    (tmp_path / "outside/aaaaaaaa-aaaa").mkdir(parents=True)
    lake.commit(lambda s: dataclasses.replace(s, retired=(Retired(path, 1, "by hand"),)), "hand")
    at(lake, lake.state().made_ms + 1000, monkeypatch)
    result = retain(lake, Limits(), quiet)
    assert result.not_ours == (path,) and result.deleted == ()
    assert (tmp_path / "outside/aaaaaaaa-aaaa").is_dir() and (root_of(lake) / "gold/dir_day").is_dir()


@pytest.mark.parametrize(
    "gone",
    [
        piece(SAMPLES, NEXT_DAY).path,
        f"audit/files/run=r/batch=3/0000aaaa-0000/on={NEXT_DAY}",  # as ingest names it
        f"imported/drive_day/imports/0000aaaa-0000/day={NEXT_DAY}",  # as import does
    ],
)
def test_what_somebody_put_into_a_directory_that_goes_stays_with_it_and_is_named(
    gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kjbod.fleet.lake.arrow_files import ArrowFiles
    from kjbod.fleet.upkeep.retain import retain

    lake, old = Lake(None, ArrowFiles(str(tmp_path)), "id"), piece(SAMPLES, DAY)  # type: ignore[arg-type]
    for path in (old.path, gone):
        (tmp_path / path / "hour=03").mkdir(parents=True)
        (tmp_path / path / "hour=03/part-0.parquet").touch()
    (tmp_path / old.path / "hour=03/notes.txt").write_text("mine")
    retired = (Retired(old.path, 1, "a test"), Retired(gone, 1, "a test"))
    lake.commit(lambda state: dataclasses.replace(state, retired=retired), "retain")
    at(lake, 2 * GRACE_MS, monkeypatch)
    result = retain(lake, Limits(), quiet)
    assert (result.not_ours, result.deleted) == ((old.path,), (gone,))
    assert (tmp_path / old.path / "hour=03/notes.txt").exists() and not (tmp_path / gone).exists()
    assert [one.path for one in lake.state().retired] == [old.path]


@pytest.mark.parametrize(
    ("state", "days", "goes"),
    [
        (verified(DAY), (0, 0), True),
        (verified(DAY), (0, 1), False),
        (State("id"), (0, 0), False),  # no piece proves nothing
        (with_silver_from(State("id"), NEXT_DAY), (0, 0), True),
        (with_silver_from(State("id"), NEXT_DAY), (0, 1), False),
        (with_silver_from(State("id"), NEXT_DAY).with_pieces(SAMPLES, [piece(SAMPLES, DAY)]), (0, 0), False),  # late
        (verified(DAY), (0, None), False),
        (verified(DAY), (-99, 0), False),
    ],
)
def test_a_report_is_whole_in_silver_when_its_dates_are_compacted_or_were(
    state: State, days: tuple[int, int | None], goes: bool
) -> None:
    from kjbod.fleet.upkeep.reports import is_whole

    first, last = (None if day is None else sample(3, 0, day=day)["ts"] for day in days)
    assert is_whole(state, "samples", {"first_ts": first, "last_ts": last}) == goes


def test_a_report_goes_when_the_lake_proves_that_it_holds_it(compact_lake: Lake, tmp_path: Path) -> None:
    from kjbod.fleet.tables import AUDIT_FILES
    from kjbod.fleet.upkeep.reports import delete_ingested
    from tests.fleet.upkeep.lakes import put

    lake, inbox = compact_lake, tmp_path / "in box"
    report = functools.partial(_report, inbox)
    held, grown, altered, aside, never, later = (
        report(name, day)
        for name, day in [("a%2Db", 0), ("grown", 0), ("altered", 0), ("aside", 0), ("a%252Db", 0), ("later", 1)]
    )
    spread, being_written, link = report("spread"), report(".held"), held.with_name("link.jsonl")
    long = report("long", more="x" * (1 << 20))  # of which ingest has seen the first line alone
    link.symlink_to(held)
    (inbox / "samples/date=2026-10-31").symlink_to(never.parents[1])
    rows = [_audited(path) for path in (held, grown, altered, link, being_written)]
    rows += [_audited(aside, kept=False, status="torn"), _audited(spread, last_ts=sample(3, 0, day=1)["ts"])]
    rows += [_audited(long, lines=1, crc=zlib.crc32(b"long"))]
    rows += [_audited(never) | {"uri": rows[0]["uri"].replace("%252D", "-")}]  # of one that is not there any more
    lake.commit(lambda s: put(lake, s, AUDIT_FILES, rows, DAY), "ingest")
    lake.commit(lambda s: put(lake, s, AUDIT_FILES, [_audited(later)], NEXT_DAY), "ingest")
    grown.write_text("grown\nmore\n")
    altered.write_text("ALTERED\n")

    def delete(before: str, **how: bool) -> tuple[int, int]:
        return delete_ingested(lake, f"file:{inbox}", before, quiet, **how)

    there = {path for path in inbox.rglob("*") if path.is_file()}
    assert delete(DAY, dry_run=True)[0] == 0  # not old enough
    assert delete("2026-11-03", dry_run=True)[0] == 1 and held.exists()
    assert delete("2026-11-03")[0] == 1
    assert there - {path for path in inbox.rglob("*") if path.is_file() or path.is_symlink()} == {held}
    assert link.is_symlink()


def _report(inbox: Path, name: str, day: int = 0, more: str = "") -> Path:
    path = inbox / "samples" / f"date=2026-11-{day + 1:02}" / "hour=03" / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{name}\n{more}\n" if more else f"{name}\n")
    return path


def _audited(path: Path, **more: Any) -> dict[str, Any]:
    """The audit of a report as ingest would write it, its URI as Spark has it."""
    from tests.fleet.upkeep.lakes import audit_row

    inbox, day = path.parents[3], int(path.parents[1].name[-1]) - 1
    one = audit_row("samples", sample(3, 0, day=day, _file=path.name)) | {"inbox": f"file:{inbox}"}
    lines = path.read_bytes().splitlines()
    said = {"bytes": path.stat().st_size, "lines": len(lines), "crc": sum(map(zlib.crc32, lines)) % 2**32}
    return one | said | {"good_lines": 1, "uri": f"file:{quote(str(path), safe='/=')}"} | more
