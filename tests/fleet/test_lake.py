"""A lake: what a commit promises, who may claim it, and what is no lake."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.lake import claim
from kjbod.fleet.lake.arrow_files import ArrowFiles
from kjbod.fleet.lake.lake import IDENTITY, LIVE, STATES_KEPT, Lake, open_lake
from kjbod.fleet.lake.state import BATCH, LostPiecesError, Piece, State, from_json, to_json
from kjbod.fleet.tables import LAKE_VERSION, TABLES

SAMPLES, DIR_HOUR = "silver.samples", "gold.dir_hour"
DATE, HOURS = "2026-11-01", ("03", "04")
T3_MS = 1_793_502_000_000
"""03:00 on that date."""


def piece(path: str, hours: tuple[str, ...] = HOURS, date: str = DATE, rows: int = 1, form: str = BATCH) -> Piece:
    return Piece(path if "/" in path else f"silver/samples/{path}", date, hours, rows, form)


def names_of(pieces: Iterable[Piece]) -> list[str]:
    """Last part of their paths."""
    return [one.path.rpartition("/")[2] for one in pieces]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """By pyarrow, without Spark: the same by Hadoop's classes is held by test_lake_files."""
    files = ArrowFiles(str(tmp_path / "lake"))
    files.create(IDENTITY, json.dumps({"lake": LAKE_VERSION, "id": "lake-1"}))
    return Lake(None, files, "lake-1")  # type: ignore[arg-type]


# states --------------------------------------------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "c", "d", "e"])
hours = st.sets(st.sampled_from([f"{DATE}T{hour:02}" for hour in range(4)]), min_size=1)


@given(st.lists(st.tuples(st.sampled_from(["ingest", "rollup", "compact"]), hours), max_size=20), st.data())
def test_no_row_is_lost_or_doubled_whatever_the_order_of_commits(
    steps: list[tuple[str, set[str]]], data: st.DataObject
) -> None:
    state, rows, dirty = State("x"), 0, set[str]()
    for number, (step, some) in enumerate(steps):
        if step == "ingest":
            rows += len(some)
            added = piece(f"p{number}", tuple(sorted(hour[11:] for hour in some)), rows=len(some))
            state = state.with_pieces(SAMPLES, [added]).with_touched(some)
            dirty |= some
        elif step == "compact":
            of_it = state.pieces(SAMPLES)
            replaced = data.draw(st.lists(st.sampled_from(of_it), unique=True)) if of_it else []
            together = piece(
                f"c{number}",
                tuple(sorted({hour for p in replaced for hour in p.hours})),
                rows=sum(p.rows for p in replaced),
            )
            state = state.with_pieces(SAMPLES, [together] if replaced else [], replaced=replaced)
        else:
            state = state.without_touched(some, state)
            dirty -= some
        state = from_json(to_json(state.next(step, number)), "a test")
        assert sum(p.rows for p in state.pieces(SAMPLES)) == rows
        assert set(state.touched) == dirty
        live, gone = {p.path for p in state.pieces(SAMPLES)}, {r.path for r in state.retired}
        assert not live & gone


def test_hours_that_were_touched_after_they_were_read_stay_touched() -> None:
    seen = State("x").with_touched([f"{DATE}T03", f"{DATE}T04"]).next("ingest", 1)
    late = seen.with_touched([f"{DATE}T04", f"{DATE}T05"]).next("ingest", 2)
    after = late.without_touched([f"{DATE}T03", f"{DATE}T04"], seen)
    assert set(after.touched) == {f"{DATE}T04", f"{DATE}T05"}


def test_hours_that_were_first_touched_after_the_state_that_was_read_stay_touched() -> None:
    seen = State("x").next("ingest", 1)
    late = seen.with_touched([f"{DATE}T03"]).next("ingest", 2)
    assert set(late.without_touched([f"{DATE}T03"], seen).touched) == {f"{DATE}T03"}


def test_what_was_replaced_cannot_be_replaced_again() -> None:
    a = piece("a")
    state = State("x").with_pieces(SAMPLES, [a]).with_pieces(SAMPLES, [piece("b")], replaced=[a])
    with pytest.raises(LostPiecesError, match=r"silver.samples: silver/samples/a was replaced meanwhile"):
        state.with_pieces(SAMPLES, [piece("c")], replaced=[a])


def test_pieces_that_came_where_there_were_none_are_seen_too() -> None:
    seen = State("x").with_pieces(SAMPLES, [piece("a", ("03",))])
    now = seen.with_pieces(SAMPLES, [piece("b", ("04",))])
    now.check_same(seen, SAMPLES, hours=[f"{DATE}T03"])
    for which in ({"hours": [f"{DATE}T04"]}, {"dates": [DATE]}):
        with pytest.raises(LostPiecesError, match=r"silver.samples: silver/samples/b was added or replaced meanwhile"):
            now.check_same(seen, SAMPLES, **which)


def test_what_was_replaced_is_retired_from_the_commit_on() -> None:
    a = piece("a")
    state = State("x").with_pieces(SAMPLES, [a]).next("ingest", 5)
    state = state.with_pieces(SAMPLES, [], replaced=[a]).next("compact", 7).next("retain", 9)
    assert [(r.path, r.since_ms) for r in state.retired] == [(a.path, 7)]


def test_pieces_are_found_by_date_and_hour() -> None:
    pieces = [piece("a", ("03",)), piece("b", ("04", "05")), piece("c", ("03",), "2026-11-02")]
    state = State("x").with_pieces(SAMPLES, pieces)

    def paths(**asked: Any) -> list[str]:
        return names_of(state.pieces(SAMPLES, **asked))

    assert paths() == ["a", "b", "c"]
    assert paths(dates=["2026-11-02", "2026-11-03"]) == ["c"]
    assert paths(hours=[f"{DATE}T03"]) == ["a"]
    assert paths(hours=[f"{DATE}T05", "2026-11-02T03"]) == ["b", "c"]
    assert paths(dates=["2026-11-02"], hours=[f"{DATE}T03"]) == paths(hours=[]) == []
    assert state.dates(SAMPLES) == [DATE, "2026-11-02"]
    assert state.hours(SAMPLES, DATE) == [f"{DATE}T03", f"{DATE}T04", f"{DATE}T05"]


FOREIGN = ["", "{", "[]", "null", "7", '{"lake": 1}', '{"lake": "1"}', '{"lake": true, "tables": 3}', "\x00"]


@pytest.mark.parametrize("text", [*FOREIGN, '{"lake": 1, "tables": {"a": {"b": [["c"]]}}}'])
def test_what_is_no_state_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(FleetError, match=r"^here") as refused:
        from_json(text, "here")
    assert "\n" not in str(refused.value)


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v, max_size=3), max_leaves=8)
)
def test_a_state_with_anything_in_place_of_a_field_is_read_or_refused(strange: Any) -> None:
    plain = json.loads(to_json(State("x").with_pieces(SAMPLES, [piece("a")]).next("ingest", 1)))
    for name in plain:
        with contextlib.suppress(FleetError):
            state = from_json(json.dumps(plain | {name: strange}), "here")
            to_json(state)
            state.pieces(SAMPLES, hours=[f"{DATE}T03"])
            to_json(state.with_pieces(SAMPLES, []).without_touched([DATE], state).with_touched([DATE]).next("x", 1))


GOOD = ["silver/samples/a", "03,04", 1, BATCH, 1]


@pytest.mark.parametrize(
    ("at", "strange"),
    [
        *[
            (0, path)
            for path in (7, "", "/etc", "../x/y", "silver/samples/../../x", "silver", "silver//a", "_live/a/b")
        ],
        *[(1, hours) for hours in (3, None, "7", "03;04", "03,")],
        *[(2, rows) for rows in ("1", True, 1.5, None, -1)],
        *[(3, form) for form in ("zip", None, "")],
        *[(4, made) for made in ("1", None, False)],
    ],
)
def test_a_state_with_a_piece_that_no_commit_has_named_is_refused(at: int, strange: Any) -> None:
    def text(piece_: list[Any]) -> str:
        return json.dumps(json.loads(to_json(State("x"))) | {"tables": {SAMPLES: {DATE: [piece_]}}})

    assert names_of(from_json(text(GOOD), "here").pieces(SAMPLES)) == ["a"]
    with pytest.raises(FleetError, match="here is not the state of a lake"):
        from_json(text([*GOOD[:at], strange, *GOOD[at + 1 :]]), "here")


def test_a_format_that_is_a_truth_value_is_none() -> None:
    text = to_json(State("x")).replace('"lake":1,', '"lake":true,')
    with pytest.raises(FleetError, match="a lake of version True"):
        from_json(text, "here")


# commits -------------------------------------------------------------------------------------------------------------


def test_of_writers_at_once_none_loses_a_piece(lake: Lake) -> None:
    writers, each = 4, 6

    def write(number: int) -> None:
        other = Lake(None, ArrowFiles(lake.uri), lake.lake_id)  # type: ignore[arg-type]
        for turn in range(each):
            added = piece(f"{number}-{turn}")
            other.commit(lambda state, added=added: state.with_pieces(SAMPLES, [added]), "ingest")  # type: ignore[misc]

    threads = [threading.Thread(target=write, args=(n,)) for n in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = lake.state()
    assert set(names_of(state.pieces(SAMPLES))) == {f"{n}-{t}" for n in range(writers) for t in range(each)}
    assert state.version == writers * each


def test_of_two_who_replace_the_same_piece_one_is_told(lake: Lake) -> None:
    a = piece("a")
    before = lake.commit(lambda state: state.with_pieces(SAMPLES, [a]), "ingest")
    lake.commit(lambda state: state.with_pieces(SAMPLES, [piece("b")], replaced=before.pieces(SAMPLES)), "compact")
    with pytest.raises(LostPiecesError):
        lake.commit(lambda state: state.with_pieces(SAMPLES, [piece("c")], replaced=before.pieces(SAMPLES)), "compact")
    assert names_of(lake.state().pieces(SAMPLES)) == ["b"]


def test_of_two_rollups_at_once_the_gold_of_one_counts(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of the first gold of an hour, which replaces nothing."""
    pytest.importorskip("pyspark")
    from kjbod.fleet.rollup import run

    made: list[str] = []
    monkeypatch.setattr(lake, "make_durable", lambda: None)

    def make(step: Any, _progress: Any) -> None:
        made.append(f"gold{len(made)}")
        step._replaces(TABLES[DIR_HOUR], hours=step.hours)
        step._replaces(TABLES["gold.dir_day"], dates=[DATE])
        step.added = {DIR_HOUR: [piece(made[-1], ("03",))], "gold.dir_day": [piece(f"day of {made[-1]}", ())]}
        if len(made) == 1:
            roll()

    def roll() -> set[str]:
        return run._roll(lake, lambda _text: None, [DATE], set(), everything=True)[0]

    monkeypatch.setattr(run._Step, "make", make)
    lake.commit(lambda now: now.with_pieces(SAMPLES, [piece("a", ("03",))]).with_touched([f"{DATE}T03"]), "ingest")
    assert roll() == {f"{DATE}T03"}
    assert names_of(lake.state().pieces(DIR_HOUR)) == ["gold2"]
    assert names_of(lake.state().pieces("gold.dir_day")) == ["day of gold2"]


@pytest.mark.parametrize("reads", range(1, 5))
def test_what_is_ingested_at_the_end_of_a_rollup_stays_touched(
    lake: Lake, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")
    from kjbod.fleet.rollup.run import rollup_into

    lake.commit(lambda now: now.with_touched([f"{DATE}T03"]), "ingest")  # and its silver is gone
    other, read, count = Lake(None, ArrowFiles(lake.uri), lake.lake_id), lake.state, 0  # type: ignore[arg-type]

    def ingest(now: State) -> State:
        return now.with_pieces(SAMPLES, [piece("late", ("03",))]).with_touched([f"{DATE}T03"])

    def read_and_ingest() -> State:
        nonlocal count
        count += 1
        found = read()
        if count == reads:
            other.commit(ingest, "ingest")
        return found

    monkeypatch.setattr(lake, "state", read_and_ingest)
    rollup_into(None, lake, lambda _text: None)  # type: ignore[arg-type]
    assert set(other.state().touched) == {f"{DATE}T03"}


def test_a_change_of_nothing_is_no_commit(lake: Lake) -> None:
    assert lake.commit(lambda state: state, "rollup").version == 0
    assert lake.files.list(LIVE) == []


def test_old_states_are_forgotten_and_the_newest_never(lake: Lake) -> None:
    for number in range(STATES_KEPT + 5):
        lake.commit(lambda state, number=number: state.with_touched([f"{number}"]), "ingest")  # type: ignore[misc]
    assert len(lake.files.list(LIVE)) == STATES_KEPT
    assert lake.state().version == STATES_KEPT + 5


def test_litter_beside_the_states_is_passed_over(lake: Lake) -> None:
    lake.commit(lambda state: state.with_touched(["x"]), "ingest")
    for name in ("00000000000000000009.json.tmp", ".00000000000000000009.json.1", "9.json", "readme"):
        lake.files.create(f"{LIVE}/{name}", "junk")
    assert lake.state().version == 1


def test_the_state_of_another_lake_is_refused(lake: Lake) -> None:
    lake.files.create(f"{LIVE}/{7:020d}.json", to_json(State("lake-2", version=7)))
    with pytest.raises(FleetError, match="is of another lake: restore the _live of this one"):
        lake.state()
    with pytest.raises(FleetError, match="another lake"):
        lake.commit(lambda state: state.with_touched(["x"]), "ingest")


def test_a_state_under_the_name_of_another_version_is_refused(lake: Lake) -> None:
    lake.files.create(f"{LIVE}/{7:020d}.json", to_json(State("lake-1", version=6)))
    with pytest.raises(FleetError, match=r"0007.json is the state of version 6: restore the one of its name"):
        lake.state()


def test_a_state_of_a_later_version_is_refused(lake: Lake) -> None:
    text = to_json(State("lake-1", version=1)).replace('"lake":1,', '"lake":2,')
    lake.files.create(f"{LIVE}/{1:020d}.json", text)
    with pytest.raises(FleetError, match="a lake of version 2, this kjbod knows 1: install a newer one"):
        lake.state()


# what is a lake ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("with_spark")
class TestOpening:
    """With Hadoop's classes."""

    def test_a_lake_is_made_once(self, spark: Any, tmp_path: Path) -> None:
        made = open_lake(spark, str(tmp_path / "lake"), create=True)
        assert open_lake(spark, f"file://{tmp_path}/lake", create=True).lake_id == made.lake_id
        assert open_lake(spark, str(tmp_path / "lake")).state() == State(made.lake_id)
        made.commit(lambda state: state.with_pieces(SAMPLES, [piece("a")]).with_touched([f"{DATE}T03"]), "ingest")
        assert names_of(open_lake(spark, made.uri).state().pieces(SAMPLES)) == ["a"]

    @pytest.mark.parametrize("create", [False, True])
    def test_a_directory_with_something_else_is_no_lake(self, spark: Any, tmp_path: Path, create: bool) -> None:
        (tmp_path / "holiday.jpg").touch()
        with pytest.raises(FleetError, match=r"is not a lake: it has holiday.jpg"):
            open_lake(spark, str(tmp_path), create=create)
        assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]

    def test_who_reads_makes_no_lake(self, spark: Any, tmp_path: Path) -> None:
        with pytest.raises(FleetError, match=r"no lake at .*: kjbod fleet ingest makes one"):
            open_lake(spark, str(tmp_path / "lake"))
        assert not (tmp_path / "lake").exists()

    @pytest.mark.parametrize("text", [*FOREIGN, '{"lake": 2, "id": "x"}'])
    def test_an_identity_that_cannot_be_read_is_refused(self, spark: Any, tmp_path: Path, text: str) -> None:
        (tmp_path / IDENTITY).write_text(text)
        with pytest.raises(FleetError, match=IDENTITY) as refused:
            open_lake(spark, str(tmp_path), create=True)
        assert "\n" not in str(refused.value)
        assert (tmp_path / IDENTITY).read_text() == text

    def test_only_rows_that_a_state_names_are_read(self, spark: Any, tmp_path: Path) -> None:
        lake = open_lake(spark, str(tmp_path / "lake"), create=True)
        named, litter = (lake.new_directory(SAMPLES, f"date={DATE}") for _ in range(2))
        for path in (named, litter):
            table = pyarrow.table({"ts": [T3_MS, T3_MS + 3_600_000], "host": [path, path], "hour": ["03", "04"]})
            parquet.write_to_dataset(table, lake.full(path).removeprefix("file:"), partition_cols=["hour"])
        state = lake.commit(lambda state: state.with_pieces(SAMPLES, [piece(named, rows=2)]), "ingest")
        rows = lake.read(SAMPLES, state)
        assert [tuple(row) for row in rows.select("host", "date", "hour").orderBy("hour").collect()] == [
            (named, DATE, "03"),
            (named, DATE, "04"),
        ]
        assert lake.read(SAMPLES, state, hours=[f"{DATE}T04"]).count() == 1
        assert lake.read(SAMPLES, state, dates=["2026-11-02"]).count() == 0
        assert lake.read(DIR_HOUR, state).count() == 0


# claims --------------------------------------------------------------------------------------------------------------

HOLDER = """
import sys
from kjbod.fleet.lake.arrow_files import ArrowFiles
from kjbod.fleet.lake.claim import claimed
from kjbod.fleet.lake.lake import Lake
with claimed(Lake(None, ArrowFiles(sys.argv[1]), "lake-1"), "ingest"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def holder(lake: Lake) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, lake.uri], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.usefixtures("world")
def test_a_claim_is_refused_while_another_process_holds_it(lake: Lake) -> None:
    with holder(lake) as process:
        with pytest.raises(FleetError, match=f"ingest runs already, process {process.pid} on "), claimed(lake):
            pass
        with claim.claimed(lake, "rollup"):  # one of another command is another claim
            pass
        process.communicate("")
    with claimed(lake):
        pass
    assert lake.files.list(claim.CLAIMS) == []


@pytest.mark.usefixtures("world")
def test_the_claim_of_a_process_that_was_killed_is_taken_over(lake: Lake) -> None:
    with holder(lake) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        with claimed(lake):
            assert json.loads(lake.files.read("_claims/ingest.json") or "")["pid"] == os.getpid()
    assert lake.files.list(claim.CLAIMS) == []


def test_a_number_that_another_process_has_now_does_not_hold_a_claim(lake: Lake) -> None:
    with claimed(lake):
        held = json.loads(lake.files.read("_claims/ingest.json") or "")
    lake.files.create("_claims/ingest.json", json.dumps(held | {"started": held["started"] - 1}))
    with claimed(lake):
        pass


def test_a_number_of_another_pid_namespace_says_nothing_of_a_process(lake: Lake, tmp_path: Path) -> None:
    """In a container with the host's name, 7 is another process than outside, or none."""
    gone = {**claim._myself(), "started": -1}
    for holder in (gone | {"pid_ns": "pid:[7]"}, {name: value for name, value in gone.items() if name != "pid_ns"}):
        lake.files.replace("_claims/ingest.json", json.dumps(holder))
        with pytest.raises(FleetError, match="runs already"), claimed(lake):
            pass
        os.utime(tmp_path / "lake/_claims/ingest.json", (1, 1))
        with claimed(lake):
            pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"host": "elsewhere", "pid": 1}'])
def test_a_claim_of_whoever_is_void_when_it_was_not_renewed(lake: Lake, tmp_path: Path, text: str) -> None:
    lake.files.create("_claims/ingest.json", text)
    with pytest.raises(FleetError, match="runs already"), claimed(lake):
        pass
    old = (tmp_path / "lake/_claims/ingest.json").stat().st_mtime - claim.LEASE_MS / 1000 - 1
    os.utime(tmp_path / "lake/_claims/ingest.json", (old, old))
    with claimed(lake):
        pass
    assert lake.files.list(claim.CLAIMS) == []


def test_a_claim_is_renewed_while_it_is_held(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "RENEW_S", 0.01)
    file, renewed = tmp_path / "lake/_claims/ingest.json", threading.Event()
    replace = lake.files.replace

    def noted(path: str, text: str) -> None:
        replace(path, text)
        renewed.set()

    monkeypatch.setattr(lake.files, "replace", noted)
    with claimed(lake):
        os.utime(file, (1, 1))
        renewed.clear()
        assert renewed.wait(30)
        assert file.stat().st_mtime > 1


def test_of_many_who_find_a_void_claim_one_gets_it(lake: Lake) -> None:
    held = {**claim._myself(), "started": -1}
    lake.files.replace("_claims/ingest.json", json.dumps(held))
    running, most, lock, barrier = 0, 0, threading.Lock(), threading.Barrier(6)

    def run(number: int) -> None:
        nonlocal running, most
        other = Lake(None, ArrowFiles(lake.uri), lake.lake_id)  # type: ignore[arg-type]
        rng = random.Random(number)
        barrier.wait()
        with contextlib.suppress(FleetError), claimed(other):
            with lock:
                running += 1
                most = max(most, running)
            for _ in range(rng.randrange(2_000)):
                pass
            with lock:
                running -= 1

    threads = [threading.Thread(target=run, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert lake.files.list(claim.CLAIMS) == []


def test_a_claim_that_another_has_aside_for_a_moment_is_given_back(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    path, aside = "_claims/ingest.json", "_claims/.ingest.other"
    monkeypatch.setattr("time.sleep", lambda _: lake.files.rename(aside, path))
    with claimed(lake):
        lake.files.rename(path, aside)
    assert lake.files.list(claim.CLAIMS) == []


def claimed(lake: Lake) -> contextlib.AbstractContextManager[None]:
    return claim.claimed(lake, "ingest")
