"""On a cluster of processes: spark-submit with the bundle, two workers, one of which dies in the middle."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kjbod.fleet.command import Place, Running, spark_errors
from kjbod.fleet.session import spark_session
from scripts.fleet_bundle import write_bundle
from scripts.rig.spark_cluster import SparkCluster
from tests.depth import only_deep
from tests.fleet.conftest import write_demo

pytestmark = [pytest.mark.usefixtures("with_spark"), pytest.mark.timeout(600), only_deep("a minute of two processors")]

CONF = (
    "spark.ui.enabled=false",
    "spark.log.level=ERROR",
    "spark.sql.shuffle.partitions=2",
    "spark.driver.host=127.0.0.1",
    "spark.executor.extraJavaOptions=-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.driver.extraJavaOptions=-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, with_spark: None) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_bundle(tmp_path_factory.mktemp("bundle"))


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("reports")
    write_demo(root)
    return root


def submitted(cluster: SparkCluster, bundle: tuple[Path, Path], cwd: Path, *arguments: str) -> "subprocess.Popen[str]":
    archive, entry = bundle
    options = ["--py-files", str(archive), "--driver-memory", "1g", "--executor-memory", "512m"]
    for setting in CONF:
        options += ["--conf", setting]
    return subprocess.Popen(
        cluster.submit([str(entry), *arguments], *options),
        env=cluster.environment | {"PYSPARK_PYTHON": sys.executable},
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_report_of_a_cluster_is_that_of_one_machine_also_when_a_worker_dies(
    cluster: SparkCluster, bundle: tuple[Path, Path], reports: Path, tmp_path: Path
) -> None:
    places = ["report", "--reports", str(reports), "--out"]
    with submitted(cluster, bundle, tmp_path, *places, str(tmp_path / "quiet")) as quiet:
        out, err = quiet.communicate()
    assert quiet.returncode == 0, err
    assert "2 of 9 directories failed and 1 is stopped." in out

    victim, killed = cluster.workers[0], threading.Event()

    def kill_in_the_middle() -> None:
        # An executor and some of its time: it has begun with tasks.
        while not any(process.cpu_times().user > 3 for process in victim.executors()):
            time.sleep(0.02)
        victim.kill()
        killed.set()

    killing = threading.Thread(target=kill_in_the_middle, daemon=True)
    with submitted(cluster, bundle, tmp_path, *places, str(tmp_path / "killed")) as hit:
        killing.start()
        out, err = hit.communicate()
    assert killed.is_set()
    assert hit.returncode == 0, err
    assert "2 of 9 directories failed and 1 is stopped." in out
    cluster.start_worker().wait_for("Successfully registered with master")


def test_a_master_by_its_address_and_executors_of_its_own_give_the_same(cluster: SparkCluster) -> None:
    for master in (cluster.url, "local-cluster[2,1,1024]"):
        with spark_session(master) as spark, spark_errors():
            assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
            assert spark.conf.get("spark.sql.shuffle.partitions") == "4"  # two executors with a processor each
            keys = spark.range(1_000, numPartitions=4).selectExpr("id % 7 k").groupBy("k").count()
            assert sorted(row["count"] for row in keys.collect()) == [142] + [143] * 6


def test_a_verbose_command_says_where_the_ui_is(capsys: pytest.CaptureFixture[str]) -> None:
    from kjbod.output import Printer

    running = Running("rollup", Place("local-cluster[1,1,1024]", None, True), Printer(patient=True))
    with running.session() as spark:
        assert spark.range(3).count() == 3
    assert "UI: http://127.0.0.1:" in capsys.readouterr().out
