"""A program: publishes a lake to a Hadoop catalog of Iceberg, changes the lake, publishes again, and prints what it
saw. Run by the Python of ``scripts/iceberg``, whose Spark is the one that Iceberg has a runtime for."""

import json
import sys
from pathlib import Path
from typing import Any

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.lake.iceberg import IcebergTables
from kjbod.fleet.lake.lake import Lake, open_lake
from kjbod.fleet.session import spark_session
from kjbod.fleet.tables import DIR_DAY, DIR_HOUR, SILVER_SAMPLES
from kjbod.fleet.upkeep.checksum import summary
from kjbod.fleet.upkeep.compact import compact
from kjbod.fleet.upkeep.publish import publish
from tests.fleet.upkeep.lakes import DAY, filled, ingest, rollup, sample


def quiet(_text: str) -> None:
    pass


def snapshots(lake: Lake, name: str) -> int:
    return lake.spark.table(f"{name}.snapshots").count() if lake.spark.catalog.tableExists(name) else 0


def main(root: str) -> None:
    with spark_session("local[2]") as spark:
        lake = filled(spark, Path(root) / "lake")
        tables = IcebergTables(spark, "ice.fleet", f"file:{root}/warehouse")
        day, samples = tables.name_of(DIR_DAY), tables.name_of(SILVER_SAMPLES)
        seen: dict[str, Any] = {"first": publish(lake, tables, quiet), "again": publish(lake, tables, quiet)}
        seen["snapshots"] = snapshots(lake, day), snapshots(lake, samples)
        compact(lake, [DAY], quiet)
        seen["compacted"] = publish(lake, tables, quiet)
        seen["samples"] = spark.table(samples).count()
        ingest(lake, [sample(5, 1, day=1, host="h9")])
        rollup(lake)
        seen["later"] = publish(lake, tables, quiet)
        seen["equal"] = [
            summary(spark.table(tables.name_of(table)), table)
            == summary(lake.read(table.full_name, lake.state()), table)
            for table in (DIR_DAY, DIR_HOUR)
        ]
        seen["days"] = sorted(row[0] for row in spark.table(day).select("date").collect())
        seen["snapshots later"] = snapshots(lake, day)
        other = open_lake(spark, f"{root}/other", create=True)
        try:
            publish(other, tables, quiet)
        except FleetError as error:
            seen["other"] = str(error)
    print(json.dumps(seen))


main(sys.argv[1])
