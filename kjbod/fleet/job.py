"""The report job: read, write tables, collect, draw. The only place that knows the order of things."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kjbod.fleet.html import page
from kjbod.fleet.schema import EVENTS, SAMPLES, STREAMS
from kjbod.fleet.summary import Report
from kjbod.quick_dataclass import dataclass

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kjbod.fleet import read

T = TypeVar("T")
R = TypeVar("R")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Inventory:
    """Contents of a reports directory."""

    root: str
    """Its URI."""
    files: Mapping[str, Mapping[str, int]]
    """Finished files of each stream: URI to size in bytes."""
    open_files: int
    """Files that agents are still writing."""

    @property
    def count(self) -> int:
        """Finished files."""
        return sum(map(len, self.files.values()))

    @property
    def size(self) -> int:
        """Bytes of finished files."""
        return sum(size for listed in self.files.values() for size in listed.values())


def run_report(
    spark: "SparkSession", inventory: Inventory, out: Path, progress: Progress, silent_after_ms: int | None = None
) -> Report:
    """Make tables, ``report.json`` and ``index.html`` in ``out`` from the report files of ``inventory``.

    ``silent_after_ms``: how much older than the newest line of all an agent's newest one may be; None:
    :data:`kjbod.fleet.transforms.SILENT_AFTER_MS`."""
    progress("reading and checking reports")
    audit = _ingest(spark, inventory, out)
    progress("computing health, failures, capacity and timeline")
    tables, counts = _analyse(spark, out, silent_after_ms)
    files = [dataclasses.asdict(file) for file in audit]
    good = sum(file.good_lines for file in audit if file.kept)
    report = Report(
        agents=tables["agents"],
        directories=tables["directories"],
        incidents=tables["incidents"],
        capacity=tables["capacity"],
        timeline=tables["timeline"],
        files=files,
        samples=counts[SAMPLES],
        events=counts[EVENTS],
        duplicates=good - sum(counts.values()),
        open_files=inventory.open_files,
    )
    progress("drawing the page")
    (out / "report.json").write_text(json.dumps(report.to_json(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    (out / "index.html").write_text(page(report), encoding="utf-8")
    return report


def _ingest(spark: "SparkSession", inventory: Inventory, out: Path) -> list["read.FileAudit"]:
    """Judge the files, write clean rows to ``tables/samples`` and ``tables/events``, the rest to ``quarantine``."""
    from pyspark import StorageLevel

    from kjbod.fleet import read

    def ingest(stream: str) -> list[read.FileAudit]:
        # A young agent has sent no sample yet; Spark takes a folder that does not exist for a mistake.
        text = read.read_text(spark, f"{inventory.root}/{stream}" if inventory.files[stream] else None)
        lines = read.parse_lines(text, stream).persist(StorageLevel.MEMORY_AND_DISK)
        audit = read.audit_files(lines, inventory.files[stream], stream)
        if any(not file.kept or file.bad_lines for file in audit):
            read.quarantined(lines, audit).coalesce(1).write.mode("append").json(str(out / "quarantine" / stream))
        read.good_rows(lines, audit, stream).write.partitionBy("date").parquet(str(out / "tables" / stream))
        lines.unpersist()
        return audit

    audit = [file for files in _at_once(ingest, STREAMS) for file in files]
    rows = [dataclasses.astuple(file) for file in audit]
    spark.createDataFrame(rows, read.AUDIT_DDL).coalesce(1).write.parquet(str(out / "tables" / "files"))
    return audit


def _analyse(
    spark: "SparkSession", out: Path, silent_after_ms: int | None
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, int]]:
    """Write and return the tables of results, and the number of rows of each stream."""
    from kjbod.fleet import transforms

    samples, events = (_reread(spark, out, name) for name in STREAMS)
    health = transforms.directory_health(samples, events).persist()
    said = transforms.agent_health(health, events)
    after_ms = transforms.SILENT_AFTER_MS if silent_after_ms is None else silent_after_ms
    agents = transforms.agents_heard(said, transforms.intervals(samples), after_ms).persist()
    tables = {
        "directories": transforms.directories_heard(health, agents),
        "agents": agents,
        "incidents": transforms.incidents(events),
        "capacity": transforms.capacity(samples),
        "timeline": transforms.timeline(events),
    }
    written = _at_once(lambda name: _write(tables[name], out / "tables" / name), list(tables))
    counts = {name: table.count() for name, table in zip(STREAMS, (samples, events), strict=True)}
    return dict(zip(tables, written, strict=True)), counts


def _reread(spark: "SparkSession", out: Path, name: str) -> "DataFrame":
    """A stream from its Parquet table: JSON is parsed once, everything after is an order of magnitude cheaper."""
    from kjbod.fleet.read import ROW_TYPES
    from kjbod.fleet.schema import ddl

    return spark.read.schema(f"{ddl(ROW_TYPES[name])}, date STRING").parquet(str(out / "tables" / name))


def _write(table: "DataFrame", path: Path) -> list[dict[str, Any]]:
    """Write a small table as one file, and return it: collected once, in its own order."""
    whole = table.coalesce(1).persist()
    whole.write.parquet(str(path))
    rows = [row.asDict(recursive=True) for row in whole.collect()]
    whole.unpersist()
    return rows


def _at_once(call: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """``call`` for each item, all at once: small jobs leave most of a machine idle; Spark takes them in parallel."""
    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(call, items))
