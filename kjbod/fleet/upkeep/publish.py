"""Publishing: gold, and silver that was compacted, are kept in a catalog that other engines read.

Of each table the dates with a piece that is newer than what is published are written again, in one snapshot. What
retention took out of the lake stays in the catalog, whose own retention it is.
"""

from collections.abc import Callable

from kjbod.fleet.lake.iceberg import IcebergTables
from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.lake.state import State
from kjbod.fleet.tables import GOLD, IMPORTED, SILVER, TABLES, Table
from kjbod.fleet.upkeep.account import is_verified

Progress = Callable[[str], None]


def publish(lake: Lake, tables: IcebergTables, progress: Progress) -> dict[str, list[str]]:
    """Bring a catalog up to date. Table to the dates that were written.

    Raises:
        FleetError: the catalog has tables of another lake."""
    state = lake.state()
    written = {}
    tables.commit = (lake.lake_id, state.version)
    for table in TABLES.values():
        dates = dates_to_publish(state, table, tables.published(table, lake.lake_id))
        if dates:
            progress(f"publishing {table.full_name}: {len(dates)} dates")
            tables.write(table, lake.read(table.full_name, state, dates=dates), dates)
            written[table.full_name] = dates
    return written


def dates_to_publish(state: State, table: Table, published: int) -> list[str]:
    """Dates of a table with a piece that version ``published`` of the state had not. Silver is published as it is after
    it was compacted: with each row once."""
    if table.layer not in (SILVER, GOLD, IMPORTED):
        return []
    name = table.full_name
    return [
        date
        for date in state.dates(name)
        if any(piece.made > published for piece in state.pieces(name, [date]))
        and (table.layer != SILVER or is_verified(state, name, date))
    ]
