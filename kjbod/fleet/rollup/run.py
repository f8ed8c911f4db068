"""Roll up a lake: the hours that were touched, the days that they are in, and what depends on those.

Some dates at a time, oldest first: all pieces of gold that come of them are written, and then one commit puts them in
the place of those before, so that no reader sees an hour without its day, and who interrupts a long backlog loses one
step. Whatever is killed, what no state names does not count, and the hours stay touched.

Gold outlives silver. An hour that is touched and has no silver (retention has dropped it meanwhile) is left as it is:
its gold was made when there was some, and nothing would come of nothing; and so is an hour of a date of which retention
has dropped silver, and some came late: what is left is not the whole. The same goes for the incidents of a date whose
events are gone.
"""

import datetime
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark user knows

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.lake.claim import claimed
from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.lake.state import ALL_DATES, LostPiecesError, Piece, State
from kjbod.fleet.rollup import agents, days, drives, hours, incidents
from kjbod.fleet.rollup.day_rows import day_rows
from kjbod.fleet.rollup.drive_past import PastNote, merged_past, past_of_days, past_until
from kjbod.fleet.rollup.pieces import At, counted, files_of, write, write_each
from kjbod.fleet.session import COMPILED, LARGE_ROWS, MEDIUM_ROWS, PLAIN, SPLIT, tuned
from kjbod.fleet.silver import is_repeated, once, without_repetitions
from kjbod.fleet.tables import (
    AGENT_DAY,
    DIR_DAY,
    DIR_HOUR,
    DRIVE_DAY,
    DRIVE_LIFE,
    DRIVE_PAST,
    EXPOSURE_DAY,
    HOST_DAY,
    INCIDENT,
    RACK_MODEL_HOUR,
    SILVER_EVENTS,
    SILVER_SAMPLES,
    TIMELINE,
    Table,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMMAND = "rollup"
STEP_ROWS = 3_000_000
"""Rows of silver that are taken at a time: more dates than one only as long as they have no more; of a date with more,
so many hours."""
STEP_DAYS = 7
"""And dates no further apart than this."""
LARGE_DIRECTORIES = 2_000
"""Directories from which on compiling expressions, and a second processor, pay back."""
THREADS = 4
ATTEMPTS_MAX = 3
SILVER_FROM = "silver-from"
"""Note of retention: the first date of which silver is whole."""

T = TypeVar("T")
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RollupResult:
    """Work of a rollup."""

    hours: int = 0
    """Hours of which gold was made."""
    dates: int = 0
    rows: Mapping[str, int] | None = None
    """Rows that were written, by table."""
    version: int = 0
    """Of the state that it left."""


def rollup_into(spark: "SparkSession", lake: Lake, progress: Progress, *, everything: bool = False) -> RollupResult:
    """Make all gold that the silver of a lake asks for; ``everything``: of all hours that have silver, not only of
    those that were touched. Does nothing, and makes no commit, if there is none.

    Raises:
        FleetError: another rollup runs, or others replace its pieces all the time.
    """
    with claimed(lake, COMMAND):
        state = lake.state()
        wanted = hours_with_silver(state) if everything else set(state.touched)
        steps = _steps(state, wanted)
        made: list[tuple[str, int]] = []
        done: set[str] = set()
        for number, dates in enumerate(steps):
            progress(f"rolling up {_span(dates)}{f', step {number + 1} of {len(steps)}' if len(steps) > 1 else ''}")
            later = {date for step in steps[number + 1 :] for date in step}
            found = _roll(lake, progress, dates, later, everything)
            done |= found[0]
            made += found[1]
        seen = lake.state()  # once: what is ingested after it stays touched
        if left := set(seen.touched) - hours_with_silver(seen):
            lake.commit(lambda now: now.without_touched(left, seen), COMMAND)
        rows = {table: sum(n for name, n in made if name == table) for table in sorted({name for name, _ in made})}
        return RollupResult(len(done), len({hour[:10] for hour in done}), rows, lake.state().version)


def _span(dates: Sequence[str]) -> str:
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"


def hours_with_silver(state: State) -> set[str]:
    """Hours of the dates of which silver is whole."""
    tables = (SILVER_SAMPLES.full_name, SILVER_EVENTS.full_name)
    first = state.notes.get(SILVER_FROM, "")
    return {h for table in tables for date in state.dates(table) if date >= first for h in state.hours(table, date)}


def _rows(state: State, hours_: Iterable[str]) -> dict[str, int]:
    """About how many samples each hour has: pieces tell the rows of all their hours."""
    found = dict.fromkeys(hours_, 0)
    for piece in state.pieces(SILVER_SAMPLES.full_name, hours=found):
        for hour in piece.hours:
            if (name := f"{piece.date}T{hour}") in found:
                found[name] += piece.rows // len(piece.hours)
    return found


def _steps(state: State, wanted: set[str]) -> list[list[str]]:
    """Dates of the hours that have silver, those together that are rolled up at once."""
    rows = _rows(state, wanted & hours_with_silver(state))
    by_date: dict[str, int] = {}
    for hour, count in rows.items():
        by_date[hour[:10]] = by_date.get(hour[:10], 0) + count
    steps: list[list[str]] = []
    size = 0
    for date in sorted(by_date):
        apart = steps and steps[-1] and date > _day(steps[-1][0], STEP_DAYS - 1)
        if not steps or apart or size + by_date[date] > STEP_ROWS:
            steps.append([])
            size = 0
        steps[-1].append(date)
        size += by_date[date]
    return steps


def _day(date: str, days_: int) -> str:
    return (datetime.date.fromisoformat(date) + datetime.timedelta(days_)).isoformat()


def _roll(
    lake: Lake, progress: Progress, dates: Sequence[str], later: set[str], everything: bool
) -> tuple[set[str], list[tuple[str, int]]]:
    """Make and commit the gold of some dates. ``later``: dates whose turn comes."""
    for _ in range(ATTEMPTS_MAX):
        seen = lake.state()
        there = hours_with_silver(seen)
        wanted = {hour for hour in (there if everything else seen.touched) if hour[:10] in dates} & there
        if not wanted:
            return set(), []
        step = _Step(lake, seen, wanted, later)
        with step:
            step.make(progress)
        lake.make_durable()
        try:
            lake.commit(lambda now, seen=seen, step=step: step.change(now, seen), COMMAND)  # type: ignore[misc]
        except LostPiecesError:
            continue  # compacted, or made by another rollup: what replaces it is made of what counts now
        return wanted, [(table, piece.rows) for table, pieces in step.added.items() for piece in pieces]
    raise FleetError(f"{lake.uri}: others replace what is rolled up all the time: try again")


def _of_samples(rows: int) -> Mapping[str, str]:
    """Settings for what goes through so many samples."""
    return COMPILED if rows >= LARGE_ROWS else SPLIT if rows >= MEDIUM_ROWS else PLAIN


def _of_directories(directories: int) -> Mapping[str, str]:
    """Settings for what has a row for each directory. Whole stages are not compiled: that takes ten times as long as
    interpreting them, for a hundred columns and some thousand rows."""
    return PLAIN | {"spark.sql.codegen.factoryMode": "FALLBACK"} if directories >= LARGE_DIRECTORIES else PLAIN


class _Step:
    """The gold of some hours and their dates, from one state, until it is committed."""

    def __init__(self, lake: Lake, seen: State, wanted: set[str], later: set[str]) -> None:
        self._lake, self._seen, self._later = lake, seen, later
        self.hours = sorted(wanted)
        self._dates = sorted({hour[:10] for hour in wanted})
        self.added: dict[str, list[Piece]] = {}
        self._replaced: dict[str, list[Piece]] = {}
        self._which: dict[str, dict[str, Sequence[str]]] = {}
        self._notes: Mapping[str, str] = {}
        self._kept: list[DataFrame] = []
        self._pool = ThreadPoolExecutor(THREADS)

    def __enter__(self) -> "_Step":
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        self._pool.shutdown(wait=failed is None, cancel_futures=True)  # after an interrupt nobody waits for Spark
        for rows in self._kept:
            rows.unpersist()

    def change(self, now: State, seen: State) -> State:
        """The commit.

        Raises:
            LostPiecesError: others count now in the place of what this was to replace, or where there was nothing."""
        for table, replaced in self._replaced.items():
            now.check_same(seen, table, **self._which[table])
            now = now.with_pieces(table, self.added.get(table, []), replaced=replaced)
        return now.with_notes(self._notes).without_touched(self.hours, seen)

    def make(self, progress: Progress) -> None:
        """Write all pieces."""
        self._make_hours(progress)
        most = max(self._directories(date) for date in self._dates)
        with tuned(self._lake.spark, _of_directories(most)):
            self._make_days(progress)

    def _make_days(self, progress: Progress) -> None:
        made = self.added.get(DIR_HOUR.full_name, [])
        rows = day_rows(self._lake, self._seen, made, self.hours, self._read, self._persisted)
        progress("directories, hosts and agents by day, incidents, drives")
        events = self._once(SILVER_EVENTS, dates=self._dates)
        self._by_date(DIR_DAY, rows, self._dates)
        self._at_once(
            lambda: self._by_date(HOST_DAY, days.host_day(rows), self._dates),
            lambda: self._by_date(AGENT_DAY, agents.agent_day(events, rows), self._dates),
            lambda: self._make_timeline(events),
            self._make_incidents,
            self._make_drives,
        )

    # --- hours

    def _make_hours(self, progress: Progress) -> None:
        for hourly in (DIR_HOUR, RACK_MODEL_HOUR):
            self._replaces(hourly, hours=self.hours)
        replaced = dict(self._replaced)
        for batch in self._batches():
            progress(f"{len(batch)} hours from {batch[0]}")
            self._make_batch(batch, sum(_rows(self._seen, batch).values()))
        for table, pieces in replaced.items():  # compacted: what they say of other hours stays, by the hour again
            self._carry(table, pieces)

    def _make_batch(self, batch: list[str], size: int) -> None:
        spark = self._lake.spark
        with tuned(spark, _of_samples(size)):
            looked = self._pool.submit(self._once, SILVER_EVENTS, hours=batch)
            summed, maps = self._summed(batch)
            events = looked.result()
        with tuned(spark, _of_directories(summed.count())):
            rows = self._persisted(hours.dir_hour(summed, maps, events))
            counts = counted(rows, DIR_HOUR.full_name)
            racks = self._persisted(hours.rack_model_hour(rows))
            self._at_once(
                lambda: self._write_each(DIR_HOUR, rows, counts, counts),
                lambda: self._write_each(RACK_MODEL_HOUR, racks, dict.fromkeys(counts, 0)),
            )
        for kept in (racks, rows, summed, maps):
            kept.unpersist()

    def _summed(self, batch: list[str]) -> tuple["DataFrame", "DataFrame"]:
        """Sums and histograms of samples. That one is there twice is rare: they are made while it is looked for."""
        samples = self._lake.read(SILVER_SAMPLES.full_name, self._seen, hours=batch)
        looked = self._pool.submit(is_repeated, samples, SILVER_SAMPLES)
        made = self._sums_of(samples)
        if not looked.result():
            return made
        for rows in made:
            rows.unpersist()
        return self._sums_of(without_repetitions(samples, SILVER_SAMPLES))

    def _sums_of(self, samples: "DataFrame") -> tuple["DataFrame", "DataFrame"]:
        summed, maps = self._persisted(hours.summed(samples)), self._persisted(hours.histograms(samples))
        self._at_once(summed.count, maps.count)
        return summed, maps

    def _batches(self) -> list[list[str]]:
        batches: list[list[str]] = [[]]
        size = 0
        for hour, count in sorted(_rows(self._seen, self.hours).items()):
            if batches[-1] and size + count > STEP_ROWS:
                batches.append([])
                size = 0
            batches[-1].append(hour)
            size += count
        return batches

    def _carry(self, table: str, pieces: Sequence[Piece]) -> None:
        known = DIR_HOUR if table == DIR_HOUR.full_name else RACK_MODEL_HOUR
        other = {f"{piece.date}T{hour}" for piece in pieces for hour in piece.hours} - set(self.hours)
        if other:
            rows = self._lake.read_pieces(table, pieces, other)
            counts = counted(rows, table)
            self._write_each(known, rows, counts, counts)

    # --- days

    def _make_timeline(self, events: "DataFrame") -> None:
        dates = [date for date in self._dates if self._has_events(date)]
        self._by_date(TIMELINE, agents.timeline(events), dates)

    def _make_incidents(self) -> None:
        around = {_day(date, n) for date in self._dates for n in (-1, 0, 1)}
        dates = sorted(date for date in around - self._later if self._has_events(date))
        if not dates:
            return
        wide = sorted({_day(date, n) for date in dates for n in (-1, 0, 1)})
        events = self._once(SILVER_EVENTS, dates=wide)
        self._by_date(INCIDENT, incidents.incident(events, self._read(DIR_DAY, wide), dates), dates)

    def _has_events(self, date: str) -> bool:
        whole = date >= self._seen.notes.get(SILVER_FROM, "")
        return whole and bool(self._seen.pieces(SILVER_EVENTS.full_name, [date]))

    def _make_drives(self) -> None:
        """A late line may say that a drive had failed, or was well, or what its serial number is, before days that were
        rolled up long ago: if the last of these dates ends otherwise than before, all dates after it are made anew."""
        first, last = self._dates[0], self._dates[-1]
        seen = {*self._seen.dates(DIR_DAY.full_name), *self._dates}
        dates = sorted(date for date in seen if first <= date <= last)
        later = sorted(date for date in seen if date > last)
        before = self._past_before(first)
        rows = self._make_drive_days(dates, before)
        if later and self._ends_otherwise(rows, before, first, last):
            rows = rows.unionByName(self._make_drive_days(later, before.unionByName(past_of_days(rows))))
            dates += later
        self._by_date(EXPOSURE_DAY, drives.exposure_day(rows), dates)
        past = self._make_past()
        if not self._later:
            self._replaces(DRIVE_LIFE, dates=[ALL_DATES])
            self._write(DRIVE_LIFE, drives.drive_life(past), ALL_DATES, None, self._directories(dates[-1]))

    def _make_drive_days(self, dates: Sequence[str], before: "DataFrame") -> "DataFrame":
        """Write the days of drives of some dates, and return them. One date after the other, each from what the table
        says of those before it: so it does not matter which dates are rolled up in one step."""
        made: list[DataFrame] = []
        self._replaces(DRIVE_DAY, dates=[*self._which.get(DRIVE_DAY.full_name, {}).get("dates", ()), *dates])
        for date in dates:
            rows = self._persisted(drives.drive_day(self._read(DIR_DAY, [date]), before))
            self._write(DRIVE_DAY, rows, date, None, self._directories(date))
            before = before.unionByName(past_of_days(rows))
            made.append(rows)
        return functools.reduce(lambda one, other: one.unionByName(other), made)

    def _past_before(self, first: str) -> "DataFrame":
        """All days of drives before a date, as rows like those of ``gold.drive_past``."""
        note = PastNote.in_state(self._seen)
        if note is None or note.until > first or not note.counts(self._seen.pieces(DRIVE_DAY.full_name)):
            return past_of_days(self._live(DRIVE_DAY, lambda date: date < first))
        rest = self._live(DRIVE_DAY, lambda date: note.until <= date < first)
        return self._read(DRIVE_PAST).unionByName(past_of_days(rest))

    def _make_past(self) -> "DataFrame":
        """Write ``gold.drive_past``, if the one that is there is not that of the days as they are now. Returns all days
        of drives, as rows like its own."""
        live = self._pieces(DRIVE_DAY)
        if not live:
            return past_of_days(self._read(DRIVE_DAY))
        until = past_until(live)
        note = PastNote.in_state(self._seen)
        if note is not None and not (note.until <= until and note.counts(live)):
            note = None
        past = past_of_days(self._of_dates(DRIVE_DAY, note.until if note else "", until))
        past = self._read(DRIVE_PAST).unionByName(past) if note else past
        if note is None or note.until < until:
            past = self._persisted(merged_past(past))
            self._replaces(DRIVE_PAST, dates=[ALL_DATES])
            self._write(DRIVE_PAST, past, ALL_DATES, None, max(self._directories(date) for date in self._dates))
            self._notes = PastNote.of(until, live).to_notes()
        return past.unionByName(past_of_days(self._of_dates(DRIVE_DAY, until, "~")))

    def _ends_otherwise(self, rows: "DataFrame", before: "DataFrame", first: str, last: str) -> bool:
        live = self._live(DRIVE_DAY, lambda date: first <= date <= last)
        old, new = (drives.remembered(before.unionByName(past_of_days(days_))) for days_ in (live, rows))
        return bool(old.exceptAll(new).take(1) or new.exceptAll(old).take(1))

    def _live(self, table: Table, of: Callable[[str], bool]) -> "DataFrame":
        dates = [date for date in self._seen.dates(table.full_name) if of(date)]
        return self._lake.read(table.full_name, self._seen, dates=dates)

    # --- reading and writing

    def _once(self, table: Table, **which: Sequence[str]) -> "DataFrame":
        return once(self._lake.read(table.full_name, self._seen, **which), table)

    def _read(
        self, table: Table, dates: Sequence[str] | None = None, hours: Sequence[str] | None = None
    ) -> "DataFrame":
        """Rows as they are after the commit, of dates of which this step has written all that it will, or of hours, or
        of all."""
        return self._lake.read_pieces(table.full_name, self._pieces(table, dates, hours), hours)

    def _of_dates(self, table: Table, first: str, before: str) -> "DataFrame":
        """Likewise, from the first date to that before another."""
        return self._read(table, sorted({p.date for p in self._pieces(table) if first <= p.date < before}))

    def _pieces(
        self, table: Table, dates: Sequence[str] | None = None, hours: Sequence[str] | None = None
    ) -> list[Piece]:
        name = table.full_name
        gone = {piece.path for piece in self._replaced.get(name, [])}
        live = [piece for piece in self._seen.pieces(name, dates, hours) if piece.path not in gone]
        new = [piece for piece in self.added.get(name, []) if dates is None or piece.date in dates]
        new = [p for p in new if hours is None or not {f"{p.date}T{hour}" for hour in p.hours}.isdisjoint(hours)]
        return [*live, *new]

    def _persisted(self, rows: "DataFrame") -> "DataFrame":
        self._kept.append(rows.persist(StorageLevel.MEMORY_AND_DISK))
        return rows

    def _by_date(self, table: Table, rows: "DataFrame", dates: Sequence[str]) -> None:
        """Write a table's rows of some dates, in the place of those that count."""
        self._replaces(table, dates=dates)
        kept = self._persisted(rows) if len(dates) > 1 else rows
        self._write_each(table, kept, {(date, None): self._directories(date) for date in dates})

    def _write_each(
        self, table: Table, rows: "DataFrame", directories: Mapping[At, int], counts: Mapping[At, int] | None = None
    ) -> None:
        """Write rows of some dates or hours, in one job those that have one file each.

        Args:
            directories: of each date or hour, about.
            counts: rows of each; counted where not given.
        """
        together = [at for at, count in directories.items() if files_of(count) == 1]
        together = together if len(together) > 1 else []
        if together:
            known = counted(rows, table.full_name) if counts is None else counts
            pieces = write_each(self._lake, table.full_name, rows, {at: known.get(at, 0) for at in together})
            self.added.setdefault(table.full_name, []).extend(pieces)
        for date, hour in sorted(directories.keys() - set(together)):
            of_date = rows.where(F.col("date") == date)
            of_hour = of_date if hour is None else of_date.where(F.col("hour") == hour)
            self._write(table, of_hour, date, hour, directories[date, hour])

    def _replaces(self, table: Table, **which: Sequence[str]) -> None:
        """Pieces of these dates or hours count no more after the commit."""
        self._which[table.full_name] = which
        self._replaced[table.full_name] = self._seen.pieces(table.full_name, **which)

    def _directories(self, date: str) -> int:
        """Directories of a date, about: those of its largest hour."""
        live = [p.rows // len(p.hours) for p in self._seen.pieces(DIR_HOUR.full_name, [date]) if p.hours]
        new = [piece.rows for piece in self.added.get(DIR_HOUR.full_name, []) if piece.date == date]
        return max([0, *live, *new])

    def _write(self, table: Table, rows: "DataFrame", date: str, hour: str | None, size: int) -> None:
        piece = write(self._lake, table.full_name, rows, date, hour, size)
        if piece is not None:
            self.added.setdefault(table.full_name, []).append(piece)

    def _at_once(self, *calls: Callable[[], object]) -> None:
        """Small jobs leave most of a machine idle; Spark takes them in parallel."""
        for future in [self._pool.submit(call) for call in calls]:
            future.result()
