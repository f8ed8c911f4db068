"""Rows of silver, each once.

The same line can be in two files (a copy under another name, a file that was recovered after a crash), and then it is
in silver twice. Two lines with the same key that say different things are a defect of their writer, or two hosts with
one name: one of them counts, always the same one, whatever came first.
"""

from typing import TYPE_CHECKING

from kjbod.fleet.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def each_once(rows: "DataFrame", table: Table) -> "DataFrame":
    """``rows`` of a silver table without repetitions: of those with the same key the one of the smallest ``_line``, and
    of equal lines that of the smallest ``_file``."""
    from pyspark.sql import functions as F  # noqa: N812

    others = [name for name in rows.columns if name not in table.key]
    chosen = F.min_by(F.struct(*others), F.struct("_line", "_file")).alias("_chosen")
    return rows.groupBy(*table.key).agg(chosen).select(*table.key, "_chosen.*").select(*rows.columns)
