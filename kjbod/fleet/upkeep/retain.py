"""Retention: what is older than it is kept for goes, first from the state, then from the disks.

Order is everything here. A piece is taken out in a commit; its directory is *retired*, and deleted when all who may
still read it had :data:`GRACE_MS` to finish; then the state forgets it. A kill between any two steps leaves something
that the next run does, and nothing that counts without its files. What no state ever named (the files of a command that
was killed before its commit) is *litter*, known by its place and by its name, which only kjbod gives, and by its age.
Nothing else is touched, and no symbolic link is followed.

============ ======================================================= ==================================================
silver       date is compacted and verified, its gold is made, and   else it is kept, and said (exit code 1): in the
             so it is with its other table and all dates before it   order of dates, so that no gold is made, or left,
                                                                     of a date that is only half there
gold         not less than silver                                    rows of ``all`` dates and imported ones stay
audit        as long as the longest of the three                     it is what proves the others
reports      the lake holds its lines, read once more, and silver    ``--delete-ingested``: they are not kjbod's own
             of all of their dates is verified
============ ======================================================= ==================================================
"""

import dataclasses
import datetime
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.lake.files import Files, uuid_text
from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.lake.state import ALL_DATES, Piece, State
from kjbod.fleet.tables import AUDIT, AUDIT_FILES, GOLD, SILVER, TABLES
from kjbod.fleet.upkeep.account import is_verified, silver_from, with_gone, with_silver_from, without_silver

GRACE_MS = 3_600_000
"""How long the files of a retired piece stay: a command that began to read before the commit has finished by then."""
LITTER_AGE_MS = 24 * 3_600_000
"""Litter is what nobody has changed for so long: a command that writes its files changes them all the time."""

Progress = Callable[[str], None]

_SILVER = tuple(name for name, table in TABLES.items() if table.layer == SILVER)
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_PART = re.compile(r"((date|on|day)=(\d{4}-\d\d-\d\d|all)|imports|(hour|at)=\d\d|run=[0-9A-Za-z-]+|batch=\d+)")
_UNIQUE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}(-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})?")
_BATCH = re.compile(r"batch=\d+")
_DATA = re.compile(r"(\.?_SUCCESS(\.crc)?|\.?part-[0-9A-Za-z._-]+|_temporary|\d+|_?task_\w+|_?attempt_\w+)")


@dataclass(frozen=True, slots=True)
class Limits:
    """Days that things are kept for; None: for ever."""

    silver_days: int | None = None
    gold_days: int | None = None
    raw_days: int | None = None

    def checked(self) -> "Limits":
        """Check that gold outlives silver.

        Raises:
            FleetError: gold would go before the silver that it is made of."""
        if self.gold_days is not None and (self.silver_days is None or self.gold_days < self.silver_days):
            raise FleetError(
                "--gold-days has to be at least --silver-days: gold is small, and is made again from silver where it is"
                " missing"
            )
        return self

    @property
    def audit_days(self) -> int | None:
        """As long as the longest of the others."""
        days = (self.silver_days, self.gold_days, self.raw_days or 0)
        return None if days[0] is None or days[1] is None else max(d for d in days if d is not None)


@dataclass(frozen=True, slots=True)
class Kept:
    """A date of a table that is old enough to go and may not."""

    table: str
    date: str
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Dates that go, and those that stay though they are old."""

    out: tuple[tuple[str, str], ...]
    """Table and date."""
    kept: tuple[Kept, ...]
    silver_from: str


@dataclass(frozen=True, slots=True)
class Result:
    """Deeds of a run, or of one that would be."""

    plan: Plan
    rows: int
    """Taken out of the state."""
    deleted: tuple[str, ...]
    """Directories of retired pieces, and litter, below the lake."""
    waiting: int
    """Retired pieces whose grace is not over."""
    not_ours: tuple[str, ...] = ()
    """Retired paths that are left alone: below a symbolic link, not of a name that kjbod gives, or with something in
    them that kjbod has not made."""


def cutoff(today: datetime.date, days: int | None) -> str:
    """The first date that is kept; empty where all are."""
    if days is None:
        return ""
    try:
        return str(today - datetime.timedelta(days=days))
    except OverflowError:
        return ""


def plan_of(state: State, limits: Limits, today: datetime.date) -> Plan:
    """Plan retention of a state. Pure."""
    of_layer = {GOLD: cutoff(today, limits.gold_days), AUDIT: cutoff(today, limits.audit_days)}
    kept = _kept_silver(state, cutoff(today, limits.silver_days))
    out = [(name, date) for name, table in TABLES.items() for date in _old(state, name, of_layer.get(table.layer, ""))]
    stays = {(one.table, one.date) for one in kept}
    old = [(name, date) for name in _SILVER for date in _old(state, name, cutoff(today, limits.silver_days))]
    silver = [one for one in old if one not in stays]
    return Plan((*silver, *out), tuple(kept), _silver_from(state, silver))


def _silver_from(state: State, taken: Iterable[tuple[str, str]]) -> str:
    """The first date of which silver is whole when some is taken out: gold of those before is what it is, and nothing
    is made of them any more."""
    last = max((date for name, date in taken if name in _SILVER), default="")
    after = str(datetime.date.fromisoformat(last) + datetime.timedelta(days=1)) if last else ""
    return max(after, silver_from(state))


def _old(state: State, table: str, before: str) -> list[str]:
    return [date for date in state.dates(table) if date != ALL_DATES and _DATE.fullmatch(date) and date < before]


def _kept_silver(state: State, before: str) -> list[Kept]:
    """Silver that is old enough to go and may not: from the first date on that has to stay. A date that came late,
    when retention was beyond it, holds back no other."""
    kept: list[Kept] = []
    holding = ""
    for date in sorted({date for name in _SILVER for date in _old(state, name, before)}):
        whys = {name: _why_kept(state, name, date) for name in _SILVER if state.pieces(name, [date])}
        if any(whys.values()) and not holding and date >= silver_from(state):
            holding = date
        if holding not in ("", date):
            whys = {name: why or f"an older date has to stay: {holding}" for name, why in whys.items()}
        elif any(whys.values()):
            whys = {name: why or "the other table of this date has to stay" for name, why in whys.items()}
        kept += [Kept(name, date, why) for name, why in whys.items() if why]
    return kept


def _why_kept(state: State, table: str, date: str) -> str:
    if not is_verified(state, table, date):
        return f"not compacted and verified: kjbod fleet compact --day {date}"
    if date >= silver_from(state) and any(hour.startswith(date) for hour in state.touched):
        return "its gold is not made yet: kjbod fleet rollup"
    return ""


def retain(lake: Lake, limits: Limits, progress: Progress, *, dry_run: bool = False) -> Result:
    """Take out what is too old, delete what was retired long enough ago, and litter.

    Raises:
        FleetError: the lake cannot be read or changed."""
    limits.checked()
    now_ms = min(lake.clock.wall_ms(), _file_system_ms(lake))
    today = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC).date()
    state = lake.state()
    plan = plan_of(state, limits, today)
    rows = sum(piece.rows for name, date in plan.out for piece in state.pieces(name, [date]))
    if plan.out and not dry_run:
        progress(f"taking {rows:,} rows of {len(plan.out)} dates out of the lake's state")
        state = _take_out(lake, state, plan, lambda now: plan_of(now, limits, today))
    live = _live(state)
    old = [r.path for r in state.retired if r.since_ms + GRACE_MS <= now_ms and r.path not in live]
    over = [path for path in old if _is_ours(lake, path)]
    litter = list(_litter(lake, state, now_ms))
    if not dry_run:
        _delete(lake, over, litter, progress)
    not_ours = tuple(path for path in old if path not in set(over))
    return Result(plan, rows, (*over, *litter), len(state.retired) - len(old), not_ours)


def _take_out(lake: Lake, seen: State, plan: Plan, plan_now: Callable[[State], Plan]) -> State:
    """Commit exactly the pieces that were looked at, and of silver those that may still go: what was ingested
    meanwhile holds back its date and those after it."""
    taken: dict[str, list[Piece]] = {}
    for name, date in plan.out:
        taken.setdefault(name, []).extend(seen.pieces(name, [date]))
    good = _good_lines(lake, taken.get(AUDIT_FILES.full_name, []))

    def change(state: State) -> State:
        still = set(plan.out).intersection(plan_now(state).out)
        first = _silver_from(state, still)
        for name, pieces in taken.items():
            if name in _SILVER:
                state = without_silver(state, name, [p for p in pieces if (name, p.date) in still])
            else:
                state = state.with_pieces(name, [], replaced=pieces)
        for stream, lines in good.items():
            state = with_gone(state, f"{AUDIT_FILES.full_name}/{stream}", lines)
        return with_silver_from(state, first)

    return lake.commit(change, "retain")


def _good_lines(lake: Lake, pieces: list[Piece]) -> dict[str, int]:
    """Good lines of kept files, by stream, whose audit goes: the account of silver has to go on without it."""
    if not pieces:
        return {}
    rows = lake.read_pieces(AUDIT_FILES.full_name, pieces).where("kept")
    return {row[0]: int(row[1] or 0) for row in rows.groupBy("stream").agg({"good_lines": "sum"}).collect()}


def _file_system_ms(lake: Lake) -> int:
    """The file system's clock: a driver whose clock is ahead must not find everything old."""
    now = f"_claims/.now.{uuid_text()}"
    lake.files.replace(now, "")
    try:
        times = {entry.name: entry.modified_ms for entry in lake.files.list("_claims")}
    finally:
        lake.files.delete(now)
    return times.get(now.rpartition("/")[2], lake.clock.wall_ms())


def _live(state: State) -> set[str]:
    return {piece.path for dates in state.tables.values() for pieces in dates.values() for piece in pieces}


def _is_ours(lake: Lake, path: str) -> bool:
    """Whether a path is that of a piece, with no link on its way and nothing foreign in it: a state that somebody
    edited deletes nothing else, nor does what somebody has put beside the files of a piece go with them."""
    parts = path.split("/")
    if ".".join(parts[:2]) not in TABLES or not all(_PART.fullmatch(p) or _UNIQUE.fullmatch(p) for p in parts[2:]):
        return False
    if len(parts) < 3 or not any(_UNIQUE.fullmatch(part) or _BATCH.fullmatch(part) for part in parts):
        return False
    if any(lake.files.is_link("/".join(parts[:count])) for count in range(1, len(parts) + 1)):
        return False
    return _newest_ms(lake.files, path, 0) is not None


def _delete(lake: Lake, over: list[str], litter: list[str], progress: Progress) -> None:
    for path in (*over, *litter):
        lake.files.delete(path)
    if over:
        progress(f"deleted {len(over)} directories that were replaced or taken out")
        gone = set(over)

        def change(state: State) -> State:
            return dataclasses.replace(state, retired=tuple(r for r in state.retired if r.path not in gone))

        lake.commit(change, "retain")
    if litter:
        progress(f"deleted {len(litter)} directories of commands that were killed")


def _litter(lake: Lake, state: State, now_ms: int) -> Iterator[str]:
    known = _live(state) | {retired.path for retired in state.retired}
    for name in TABLES:
        layer, _, table = name.partition(".")
        if not lake.files.is_link(layer) and not lake.files.is_link(f"{layer}/{table}"):
            yield from _litter_below(lake, f"{layer}/{table}", known, now_ms)


def _litter_below(lake: Lake, path: str, known: set[str], now_ms: int) -> Iterator[str]:
    for entry in lake.files.list(path):
        below = f"{path}/{entry.name}"
        if not entry.is_directory or below in known or lake.files.is_link(below):
            continue
        # Lines of a batch that are no rows, or rows that are none of silver, below the same unique name as those that
        # are (kjbod.fleet.ingest.staging).
        is_staged = _PART.fullmatch(entry.name) and _UNIQUE.fullmatch(path.rpartition("/")[2])
        is_whole = _UNIQUE.fullmatch(entry.name) or _BATCH.fullmatch(entry.name) or is_staged
        if is_whole and not any(one.startswith(f"{below}/") for one in known):
            newest = _newest_ms(lake.files, below, entry.modified_ms)
            if newest is not None and newest + LITTER_AGE_MS <= now_ms:
                yield below
        elif _PART.fullmatch(entry.name) or is_whole:
            yield from _litter_below(lake, below, known, now_ms)


def _newest_ms(files: Files, path: str, newest: int) -> int | None:
    """Time of the last change of anything in a directory; None where it holds what kjbod has not made."""
    for entry in files.list(path):
        below = f"{path}/{entry.name}"
        if files.is_link(below) or not (_DATA.fullmatch(entry.name) or _PART.fullmatch(entry.name)):
            return None
        newest = max(newest, entry.modified_ms)
        if entry.is_directory:
            inner = _newest_ms(files, below, newest)
            if inner is None:
                return None
            newest = inner
    return newest
