"""Pieces that count in a lake: its state, and how it goes from one to the next.

Files of tables are written into directories of their own, which nobody reads until a *state* names them. A state is one
JSON file, ``_live/<version>.json``, with everything that counts: the pieces of each table, the hours of which gold is
not made yet, the batches that were taken in, what was replaced and may be deleted. Going to the next state is creating
the file of the next version, which must not be there: of two writers one creates it, the other reads it and tries again
on top of it. So a reader, who takes the newest version and reads nothing but what it names, sees a commit as a whole or
not at all, whatever was killed in the middle of it; and what no state names is litter
(:mod:`kjbod.fleet.upkeep.retain`).

============== ================================================================= ====================================
a commit of    adds                                                              and in the same step
============== ================================================================= ====================================
ingest         a piece of samples, events, audit for each date of the batch      its hours are *touched*; the batch
                                                                                 counts as taken in
rollup         a piece of each gold table for each hour or date it made          replaces those before, if they are
                                                                                 those that it saw; those hours are not
                                                                                 touched any more, unless they were
                                                                                 again meanwhile
compact        one piece for a date of silver or gold                            replaces exactly the pieces that it
                                                                                 was made of
retention      nothing                                                           takes out pieces, then what was taken
                                                                                 out long enough ago
============== ================================================================= ====================================
"""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.tables import LAKE_VERSION, LAYERS

BATCH, PLAIN = "batch", "plain"
"""Forms of a piece: files below ``hour=HH``, or files."""
ALL_DATES = "all"
"""Date of the piece of a table that has one for all dates."""
STAGED = f"date={ALL_DATES}"
"""Folder below those of a batch, of lines that are staged as they are; no piece has it."""


class LostPiecesError(Exception):
    """Pieces that a commit would replace are not those that count any more: somebody else has replaced them, or added
    some beside them."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A directory of one table with rows of one date."""

    path: str
    """Below the lake."""
    date: str
    hours: tuple[str, ...]
    """``HH``, those that it has rows of, sorted; none for a table without hours."""
    rows: int
    form: str = PLAIN
    made: int = 0
    """Version of the state that first named it."""

    def overlaps(self, hours: Iterable[str]) -> bool:
        """Whether it has rows of one of these hours."""
        return not set(self.hours).isdisjoint(hours)


@dataclass(frozen=True, slots=True)
class Retired:
    """A directory that counts no more, kept for those who still read an older state."""

    path: str
    since_ms: int
    """Wall time of the commit that took it out."""
    why: str


@dataclass(frozen=True, slots=True)
class State:
    """A version of a lake."""

    lake_id: str
    version: int = 0
    made_ms: int = 0
    """Wall time."""
    by: str = ""
    """The command that made it."""
    tables: Mapping[str, Mapping[str, tuple[Piece, ...]]] = dataclasses.field(default_factory=dict)
    """Full name of a table to date to pieces."""
    touched: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Hours whose gold is not that of their silver, ``2026-11-01T03``, to the version that touched them last."""
    batches: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Run of ingest to its last batch that was taken in."""
    retired: tuple[Retired, ...] = ()
    notes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What a command has to remember from one run to the next, by a name of its own."""

    def pieces(self, table: str, dates: Iterable[str] | None = None, hours: Iterable[str] | None = None) -> list[Piece]:
        """Pieces of a table, of all dates or of some, with rows of any hour (``2026-11-01T03``) or of some; by date."""
        of_table = self.tables.get(table, {})
        by_date: dict[str, set[str]] = {}
        for hour in hours or ():
            by_date.setdefault(hour[:10], set()).add(hour[11:])
        wanted = set(of_table) if dates is None else set(dates)
        if hours is not None:
            wanted &= set(by_date)
        return [
            piece
            for date in sorted(wanted & set(of_table))
            for piece in of_table[date]
            if hours is None or piece.overlaps(by_date[date])
        ]

    def dates(self, table: str) -> list[str]:
        """Dates of which a table has rows."""
        return sorted(date for date, pieces in self.tables.get(table, {}).items() if pieces)

    def hours(self, table: str, date: str) -> list[str]:
        """Hours of a date of which a table has rows: ``2026-11-01T03``."""
        pieces = self.tables.get(table, {}).get(date, ())
        return sorted({f"{date}T{hour}" for piece in pieces for hour in piece.hours})

    def with_pieces(self, table: str, added: Iterable[Piece], *, replaced: Iterable[Piece] = ()) -> "State":
        """``added`` count, ``replaced`` no more, and are retired.

        Raises:
            LostPiecesError: one of ``replaced`` does not count.
        """
        gone = {piece.path for piece in replaced}
        by_date = {date: list(pieces) for date, pieces in self.tables.get(table, {}).items()}
        there = {piece.path for pieces in by_date.values() for piece in pieces}
        if not gone <= there:
            raise LostPiecesError(f"{table}: {sorted(gone - there)[0]} was replaced meanwhile")
        by_date = {date: [piece for piece in pieces if piece.path not in gone] for date, pieces in by_date.items()}
        for piece in added:
            by_date.setdefault(piece.date, []).append(dataclasses.replace(piece, made=self.version + 1))
        kept = {date: tuple(sorted(pieces, key=lambda p: p.path)) for date, pieces in sorted(by_date.items()) if pieces}
        retired = tuple(Retired(path, 0, f"replaced in {table}") for path in sorted(gone))
        return dataclasses.replace(self, tables={**self.tables, table: kept}, retired=(*self.retired, *retired))

    def check_same(self, seen: "State", table: str, **which: Iterable[str]) -> None:
        """Check that of some dates or hours of a table (see :meth:`pieces`) the same pieces count as in ``seen``: that
        there were none is seen as well, and what was made then must not stand beside what another has made since.

        Raises:
            LostPiecesError: others do.
        """
        now, then = ({piece.path for piece in state.pieces(table, **which)} for state in (self, seen))
        if now != then:
            raise LostPiecesError(f"{table}: {min(now ^ then)} was added or replaced meanwhile")

    def with_notes(self, notes: Mapping[str, str]) -> "State":
        """Add notes, in the place of those of the same names."""
        return dataclasses.replace(self, notes={**self.notes, **notes})

    def with_touched(self, hours: Iterable[str]) -> "State":
        """Gold of these hours has to be made."""
        return dataclasses.replace(self, touched={**self.touched, **dict.fromkeys(hours, self.version + 1)})

    def without_touched(self, hours: Iterable[str], seen: "State") -> "State":
        """Gold of these hours was made from the silver of ``seen``; those that were touched since stay so."""
        done = set(hours)
        left = {h: v for h, v in self.touched.items() if h not in done or v > seen.touched.get(h, seen.version)}
        return dataclasses.replace(self, touched=left)

    def next(self, by: str, now_ms: int) -> "State":
        """Next version of this; what was retired without a time was retired now."""
        retired = tuple(dataclasses.replace(r, since_ms=r.since_ms or now_ms) for r in self.retired)
        return dataclasses.replace(self, version=self.version + 1, made_ms=now_ms, by=by, retired=retired)


Change = Callable[[State], State]
"""A commit: what it makes of whatever state it finds. Called again where another writer was faster."""


def to_json(state: State) -> str:
    """The state as one JSON document."""
    tables = {
        name: {date: [_piece_to_json(piece) for piece in pieces] for date, pieces in dates.items()}
        for name, dates in state.tables.items()
    }
    plain = {f.name: getattr(state, f.name) for f in dataclasses.fields(state)} | {
        "lake": LAKE_VERSION,
        "tables": tables,
        "retired": [[r.path, r.since_ms, r.why] for r in state.retired],
    }
    return json.dumps(plain, sort_keys=True, separators=(",", ":")) + "\n"


def _piece_to_json(piece: Piece) -> list[Any]:
    return [piece.path, ",".join(piece.hours), piece.rows, piece.form, piece.made]


def from_json(text: str, where: str) -> State:
    """The state in ``text``.

    Raises:
        FleetError: it is none, or one of a later version.
    """
    try:
        found = json.loads(text)
        version = found["lake"]
    except (ValueError, KeyError, TypeError):
        raise FleetError(f"{where} is not the state of a lake: it was changed by something else") from None
    if type(version) is not int or version > LAKE_VERSION:
        raise FleetError(f"{where}: a lake of version {version}, this kjbod knows {LAKE_VERSION}: install a newer one")
    try:
        return _from_plain(found)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FleetError(f"{where} is not the state of a lake: it was changed by something else") from None


_KINDS = MappingProxyType(
    {"lake_id": str, "version": int, "made_ms": int, "by": str, "touched": dict, "batches": dict, "notes": dict}
)


_HOURS = re.compile(r"(\d\d(,\d\d)*)?")


def _piece(entry: Any, date: str) -> Piece:
    """Raises:
    TypeError, ValueError: not one that a commit has named: what a path says is read, and deleted when it is old."""
    path, hours, rows, form, made = entry
    if [type(part) for part in (path, hours, rows, form, made)] != [str, str, int, str, int]:
        raise TypeError("piece")
    parts = path.split("/")
    if parts[0] not in LAYERS or len(parts) < 3 or not all(parts) or not {".", ".."}.isdisjoint(parts):
        raise ValueError(path)
    if rows < 0 or form not in (BATCH, PLAIN) or not _HOURS.fullmatch(hours):
        raise ValueError("piece")
    return Piece(path, date, tuple(hours.split(",")) if hours else (), rows, form, made)


def _from_plain(found: Mapping[str, Any]) -> State:
    tables = {
        name: {date: tuple(_piece(entry, date) for entry in pieces) for date, pieces in dates.items()}
        for name, dates in found["tables"].items()
    }
    plain = {f.name: found[f.name] for f in dataclasses.fields(State)}
    for name, kind in _KINDS.items():
        if type(plain[name]) is not kind:
            raise TypeError(name)
    if {type(version) for version in (*plain["touched"].values(), *plain["batches"].values())} - {int}:
        raise TypeError("touched or batches")
    return State(**plain | {"tables": tables, "retired": tuple(Retired(*entry) for entry in found["retired"])})
