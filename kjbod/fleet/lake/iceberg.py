"""Tables in an Iceberg catalog, in the place of pieces that a state names.

A table is partitioned by ``date``, and a write replaces the dates it has rows of, in one snapshot. The snapshot itself
says which lake it is of and how far it has come (its summary has :data:`VERSION_KEY`): the rows and the note of what is
published are one commit, and a kill between the two cannot be.
"""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.lake.state import ALL_DATES
from kjbod.fleet.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VERSION_KEY, LAKE_KEY = "kjbod-lake-version", "kjbod-lake-id"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+")


class IcebergTables:
    """A :class:`~kjbod.fleet.lake.writer.Writer` into ``CATALOG.NAMESPACE``."""

    def __init__(self, spark: "SparkSession", to: str, warehouse: str | None = None) -> None:
        """``warehouse``: make the catalog a Hadoop catalog at this URI.

        Raises:
            FleetError: no such catalog, or Spark has no Iceberg."""
        if not _NAME.fullmatch(to):
            raise FleetError(f"--to {to!r}: give CATALOG.NAMESPACE, of letters, digits and _")
        self._spark = spark
        self._to = to
        self.commit: tuple[str, int] = ("", 0)
        """Id of the lake and the version of its state that the next writes are of."""
        catalog = to.partition(".")[0]
        if warehouse is not None:
            for key, value in {
                "": "org.apache.iceberg.spark.SparkCatalog",
                ".type": "hadoop",
                ".warehouse": warehouse,
            }.items():
                spark.conf.set(f"spark.sql.catalog.{catalog}{key}", value)
        if spark.conf.get(f"spark.sql.catalog.{catalog}", "") in (None, ""):
            raise FleetError(f"Spark knows no catalog {catalog}: give --warehouse, or set spark.sql.catalog.{catalog}")
        self._make_namespace(catalog)

    def _make_namespace(self, catalog: str) -> None:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from kjbod.fleet.command import spark_reason

        try:
            self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {self._to}")  # a name of letters alone: checked above
        except (PySparkException, Py4JError) as error:
            raise FleetError(
                f"catalog {catalog}: {spark_reason(error)}: it needs iceberg-spark-runtime for Spark"
                f" {self._spark.version}, which scripts/iceberg gets"
            ) from error

    def name_of(self, table: Table | str) -> str:
        """Of a table in the catalog: ``CATALOG.NAMESPACE.gold_dir_day``."""
        full = table if isinstance(table, str) else table.full_name
        return f"{self._to}.{full.replace('.', '_')}"

    def published(self, table: Table, lake_id: str) -> int:
        """Version of the lake's state that the table has; 0 where there is no table.

        Raises:
            FleetError: it is of another lake."""
        name = self.name_of(table)
        if not self._spark.catalog.tableExists(name):
            return 0
        from pyspark.sql import functions as F  # noqa: N812

        version, lake = F.col("summary").getItem(VERSION_KEY), F.col("summary").getItem(LAKE_KEY)
        ours = self._spark.table(f"{name}.snapshots").where(version.isNotNull())
        found = ours.select(version.cast("bigint"), lake).orderBy(F.col("committed_at").desc()).limit(1).collect()
        if found and found[0][1] != lake_id:
            raise FleetError(f"{name} is of another lake, {found[0][1]}: give --to another namespace")
        return int(found[0][0]) if found else 0

    def write(self, table: Table, rows: "DataFrame", dates: Iterable[str]) -> None:
        """Replace dates in one snapshot: see :class:`~kjbod.fleet.lake.writer.Writer`."""
        from pyspark.sql import functions as F  # noqa: N812

        name, wanted = self.name_of(table), sorted(dates)
        if not self._spark.catalog.tableExists(name):
            empty = rows.limit(0)
            empty.writeTo(name).using("iceberg").partitionedBy(F.col("date")).createOrReplace()
        lake_id, version = self.commit
        order = [column for column in ("date", *table.key) if column in rows.columns]
        writer = rows.repartitionByRange(*order).sortWithinPartitions(*order).writeTo(name)
        writer = writer.option(f"snapshot-property.{LAKE_KEY}", lake_id)
        writer = writer.option(f"snapshot-property.{VERSION_KEY}", str(version))
        if wanted == [ALL_DATES]:
            writer.overwrite(F.lit(True))  # one piece for all dates: all of it is new
        else:
            writer.overwrite(F.col("date").isin(wanted))
