"""Through a Spark Connect server, without Java in this process: a lake is made, committed to and read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kjbod.fleet.command import spark_errors
from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.ingest.stream import ingest_into
from kjbod.fleet.lake.arrow_files import ArrowFiles
from kjbod.fleet.lake.claim import claimed
from kjbod.fleet.lake.lake import open_lake
from kjbod.fleet.lake.state import Piece
from kjbod.fleet.progress import source_of, watched
from kjbod.fleet.rollup.run import rollup_into
from kjbod.fleet.session import is_connect, spark_session, ui_address
from kjbod.fleet.silver import each_once
from kjbod.fleet.tables import SILVER_SAMPLES
from kjbod.fleet.upkeep.query import query
from scripts.rig.spark_cluster import connect_server
from tests.fleet.parts import drawn

pytestmark = [pytest.mark.usefixtures("with_spark"), drawn("connect")]

DATE, TS = "2026-11-01", 1_793_502_000_000


@pytest.fixture(scope="module")
def connected(tmp_path_factory: pytest.TempPathFactory, with_spark: None) -> Iterator[Any]:
    with connect_server(tmp_path_factory.mktemp("connect")) as address, spark_session(None, remote=address) as spark:
        yield spark


def test_a_lake_is_made_committed_to_and_read_through_connect(connected: Any, tmp_path: Path) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    assert is_connect(connected)
    assert ui_address(connected) is None
    lake = open_lake(connected, str(tmp_path / "lake"), create=True)
    assert isinstance(lake.files, ArrowFiles)
    path = lake.new_directory("silver.samples", f"date={DATE}")
    values = {"ts": TS, "seq": 1, "host": "h1", "broker_id": 1, "path": "/d", "dir_id": "d", "boot_id": "b", "_line": 7}
    columns = [
        F.lit(values.get(name)).cast(kind).alias(name)
        for name, kind in SILVER_SAMPLES.columns.items()
        if name not in ("date", "hour")
    ]
    source = source_of(connected)
    with claimed(lake, "ingest"), watched(connected, print, "writing"):
        connected.range(3).coalesce(1).select(*columns).write.parquet(lake.full(f"{path}/hour=03"))
        lake.make_durable()
        added = Piece(path, DATE, ("03",), 3, "batch")
        lake.commit(lambda state: state.with_pieces("silver.samples", [added]), "ingest")
    state = open_lake(connected, str(tmp_path / "lake")).state()
    rows = lake.read("silver.samples", state, hours=[f"{DATE}T03"])
    assert rows.count() == 3
    assert [tuple(r) for r in each_once(rows, SILVER_SAMPLES).select("host", "date", "hour").collect()] == [
        ("h1", DATE, "03")
    ]
    assert lake.read("gold.dir_hour", state).count() == 0
    assert source.account().bytes_read > 0
    source.close()


def test_what_the_server_refuses_is_one_line(connected: Any) -> None:
    with pytest.raises(FleetError, match=r"Spark failed: .*no_such_table") as refused, spark_errors():
        connected.sql("select * from no_such_table").collect()
    assert "\n" not in str(refused.value)


def test_a_day_of_the_server_is_one_of_utc(connected: Any) -> None:
    assert connected.conf.get("spark.sql.session.timeZone") == "UTC"


def test_reports_are_taken_once_through_connect(connected: Any, tmp_path: Path, make_agent: Any) -> None:
    inbox = tmp_path / "in box %"
    for host in ("h1", "h2"):
        agent = make_agent(host=host)
        agent.start()
        agent.sample(2_000, 0, agent.paths[0])
        agent.write(inbox)
    (inbox / "samples/date=2026-11-01/hour=12/torn.jsonl.gz").write_bytes(b"no gzip")
    lake = open_lake(connected, str(tmp_path / "lake"), create=True)
    taken = ingest_into(connected, lake, [str(inbox)], print, files_max=3)
    assert (dict(taken.files), dict(taken.rows)) == ({"ok": 4, "unreadable": 1}, {"samples": 2, "events": 68})
    assert taken.batches == 2
    assert ingest_into(connected, lake, [str(inbox)], print).files == {}
    again = ingest_into(connected, lake, [str(inbox)], print, rescan=True)
    assert (again.files["repeated"], again.rows) == (4, {"samples": 0, "events": 0})
    assert lake.read("silver.samples", lake.state()).count() == 2
    rollup_into(connected, lake, print)
    assert lake.read("gold.dir_hour", lake.state()).count() == 2
    assert query(lake, "select host, count(*) from samples s group by s.host order by 1;").rows == (
        ("h1", 1),
        ("h2", 1),
    )
    with pytest.raises(FleetError, match="nope") as refused:
        query(lake, "select nope from samples")
    assert "\n" not in str(refused.value) and "JVM" not in str(refused.value)
    assert connected.catalog.listTables() == []
    with pytest.raises(FleetError, match="--delete-ingested does not run through Spark Connect"):
        ingest_into(connected, lake, [str(inbox)], print, delete_ingested=True)


def test_an_inbox_that_is_none_is_one_line(connected: Any, tmp_path: Path) -> None:
    lake = open_lake(connected, str(tmp_path / "lake"), create=True)
    with pytest.raises(FleetError, match="no reports directory"):
        ingest_into(connected, lake, [str(tmp_path / "none")], print)
    (tmp_path / "young").mkdir()
    assert ingest_into(connected, lake, [str(tmp_path / "young")], print).files == {}
