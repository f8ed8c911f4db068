"""Memory of upkeep in a lake's state: which dates are compacted and verified, and where rows went that are gone.

Each good line of each kept file is in silver, or was a repetition that compacting left out, or was taken out by
retention: ``good lines = rows + repeated + retained``, to the last row, which is what ``kjbod fleet verify`` counts.
Notes change in the commit that changes the pieces, so they are never ahead of them or behind. Pure.
"""

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass

from kjbod.fleet.lake.state import Piece, State

_COMPACTED, _GONE, _SILVER_FROM = "compacted", "gone", "silver-from"


@dataclass(frozen=True, slots=True)
class Compacted:
    """A date of a table as compacting left it: one piece, whose rows were compared with those it was made of."""

    path: str
    rows: int
    checksum: int
    """Of all rows in any order: see :mod:`kjbod.fleet.upkeep.checksum`."""
    repeated: int = 0
    """Rows of silver that were there more than once and are not any more; of all times it was compacted."""


def compacted(state: State, table: str, date: str) -> Compacted | None:
    """Result of compacting a date; also when other pieces came since."""
    text = state.notes.get(_compacted_key(table, date))
    return None if text is None else Compacted(**json.loads(text))


def is_verified(state: State, table: str, date: str) -> bool:
    """Whether all that counts of a date is the one piece that compacting made and verified."""
    note = compacted(state, table, date)
    return note is not None and [piece.path for piece in state.pieces(table, [date])] == [note.path]


def with_compacted(state: State, table: str, date: str, done: Compacted) -> State:
    """Remember it."""
    return state.with_notes({_compacted_key(table, date): json.dumps(dataclasses.asdict(done), sort_keys=True)})


def gone(state: State, table: str) -> int:
    """Rows of a table that retention took out, with the repetitions of their dates; of ``audit.files/<stream>`` the
    good lines of kept files whose audit was taken out."""
    return int(state.notes.get(f"{_GONE} {table}", "0"))


def with_gone(state: State, table: str, rows: int) -> State:
    """So many more are gone."""
    return state.with_notes({f"{_GONE} {table}": str(gone(state, table) + rows)}) if rows else state


def silver_from(state: State) -> str:
    """The first date of which silver is whole: retention took out earlier ones, and gold of those must not be made
    again from what came late. Empty where all of it is there."""
    return state.notes.get(_SILVER_FROM, "")


def without_silver(state: State, table: str, pieces: Iterable[Piece]) -> State:
    """Retire pieces of verified dates, and account for them.

    Raises:
        LostPiecesError: one of them does not count.
    """
    taken = list(pieces)
    dates = {piece.date for piece in taken}
    repeated = sum(note.repeated for date in dates if (note := compacted(state, table, date)))
    after = with_gone(state.with_pieces(table, [], replaced=taken), table, repeated + sum(p.rows for p in taken))
    notes = {key: text for key, text in after.notes.items() if key not in {_compacted_key(table, d) for d in dates}}
    return dataclasses.replace(after, notes=notes)


def with_silver_from(state: State, date: str) -> State:
    """Silver before ``date`` is gone."""
    return state.with_notes({_SILVER_FROM: date}) if date > silver_from(state) else state


def _compacted_key(table: str, date: str) -> str:
    return f"{_COMPACTED} {table} {date}"
