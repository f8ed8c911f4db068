"""Settings of Spark follow from how much there is to read."""

import contextlib
import logging
import os
import re
import shlex
import signal
import threading
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from kjbod.fleet import session
from kjbod.fleet.command import Place, Running
from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.session import (
    LARGE_INPUT_BYTES,
    MEDIUM_INPUT_BYTES,
    SHUFFLE_INPUT_BYTES,
    driver_settings,
    is_connect,
    local_settings,
    log_settings,
    silence_java,
    spark_session,
    split_shuffles,
    ui_address,
)
from kjbod.output import Printer


@pytest.mark.parametrize(
    ("input_bytes", "partitions"),
    [(0, 1), (SHUFFLE_INPUT_BYTES - 1, 1), (SHUFFLE_INPUT_BYTES, 2), (LARGE_INPUT_BYTES, 8), (1 << 40, 8)],
)
def test_a_shuffle_has_a_partition_for_each_4_mib_and_at_most_two_for_each_processor(
    input_bytes: int, partitions: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert local_settings(tmp_path, input_bytes)["spark.sql.shuffle.partitions"] == str(partitions)


def test_only_a_large_input_is_compiled_and_planned_again(tmp_path: Path) -> None:
    small, medium = local_settings(tmp_path, MEDIUM_INPUT_BYTES), local_settings(tmp_path, MEDIUM_INPUT_BYTES + 1)
    large = local_settings(tmp_path, LARGE_INPUT_BYTES + 1)
    assert small["spark.sql.adaptive.enabled"] == small["spark.sql.codegen.wholeStage"] == "false"
    for more in (medium, large):
        assert more["spark.sql.adaptive.enabled"] == more["spark.sql.codegen.wholeStage"] == "true"
    for less in (small, local_settings(tmp_path, LARGE_INPUT_BYTES)):
        assert "TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m" in less["spark.driver.extraJavaOptions"]
    assert "TieredStopAtLevel" not in large["spark.driver.extraJavaOptions"]


@pytest.mark.parametrize("input_bytes", [0, LARGE_INPUT_BYTES + 1, 1 << 40])
def test_a_driver_has_a_gigabyte_whatever_the_input_is(input_bytes: int, tmp_path: Path) -> None:
    assert local_settings(tmp_path, input_bytes)["spark.driver.memory"] == "1g"


def test_a_scratch_folder_with_a_space_is_one_option_of_java(tmp_path: Path) -> None:
    options = driver_settings(tmp_path / "with space", 0)["spark.driver.extraJavaOptions"]
    assert f"-Djava.io.tmpdir={tmp_path}/with space" in shlex.split(options)


def test_a_cluster_gets_no_setting_that_only_this_machine_knows(tmp_path: Path) -> None:
    settings = driver_settings(tmp_path, LARGE_INPUT_BYTES + 1)
    assert not {"spark.driver.host", "spark.driver.bindAddress", "spark.local.dir"} & set(settings)
    assert not {"spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled"} & set(settings)


class Conf(dict[str, str]):
    """Settings, as far as they are asked for here."""

    def contains(self, key: str) -> bool:
        return key in self

    set = dict.__setitem__


@pytest.mark.parametrize(
    ("master", "given", "processors", "executors", "partitions"),
    [
        ("spark://h:7077", {}, 4, [1, 1, 2, 3, 3], "8"),
        ("spark://h:7077", {}, 0, [2, 2], "2"),
        ("local[4]", {}, 4, [], "8"),
        ("yarn", {"spark.sql.shuffle.partitions": "200"}, 4, [], "200"),
        ("yarn", {"spark.dynamicAllocation.enabled": "true"}, 4, [], "200"),
        ("spark://h:7077", {}, 4, None, "200"),
    ],
)
def test_shuffles_that_nobody_has_set_have_two_partitions_for_each_processor(
    master: str,
    given: dict[str, str],
    processors: int,
    executors: list[int] | None,
    partitions: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "EXECUTORS_TIMEOUT_S", 30 if executors else 0.01)
    spark, counts = MagicMock(conf=Conf({"spark.sql.shuffle.partitions": "200"})), iter(executors or ())
    spark.sparkContext.configure_mock(master=master, defaultParallelism=processors, getConf=lambda: Conf(given))
    spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size = lambda: next(counts, 1)
    split_shuffles(spark, poll_s=0.001)
    assert spark.conf["spark.sql.shuffle.partitions"] == partitions
    assert next(counts, None) is None


def test_the_ui_is_there_when_it_is_asked_for(tmp_path: Path) -> None:
    assert local_settings(tmp_path, 0)["spark.ui.enabled"] == "false"
    assert local_settings(tmp_path, 0, ui=True)["spark.ui.enabled"] == "true"


@pytest.mark.parametrize(
    ("remote", "reason"),
    [
        ("sc://127.0.0.1:1", "Connection refused"),
        ("sc://127.0.0.1:none", "Port"),
        ("http://127.0.0.1:1", "must start with 'sc://'"),
        ("local[2]", "leave it out"),
        ("sc://", "Hostname is missing"),
    ],
)
def test_a_server_that_is_not_there_is_said_at_once(remote: str, reason: str) -> None:
    before = os.environ.copy()
    with (
        pytest.raises(FleetError, match=f"--remote {re.escape(remote)}: .*{reason}") as refused,
        spark_session(None, remote=remote),
    ):
        pass
    assert "\n" not in str(refused.value)
    assert os.environ == before


@pytest.mark.parametrize("hosts", ["127.0.0.1:1", "127.0.0.1:1,[::1]:1", "nosuch.invalid:7077", "127.0.0.1:99999"])
def test_a_master_that_is_not_there_is_said_at_once(hosts: str) -> None:
    master = f"spark://{hosts}"
    said = f"^no master of Spark answers at --master {re.escape(master)}: .+"
    with pytest.raises(FleetError, match=said) as refused, spark_session(master):
        pass
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("verbose", [False, True])
def test_what_pyspark_warns_of_is_there_when_it_is_asked_for(verbose: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "spark_session", lambda *_, **__: contextlib.nullcontext(MagicMock()))
    running = Running("report", Place(verbose=verbose), Printer())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with running.session():
            for module in ("pyspark.sql.connect.plan", "kjbod.fleet"):
                warnings.warn_explicit(f"of {module}", UserWarning, "x.py", 1, module=module)
        warnings.warn_explicit("of after", UserWarning, "x.py", 1, module="pyspark.sql")
    said = ["of pyspark.sql.connect.plan"] if verbose else []
    assert [str(each.message) for each in caught] == [*said, "of kjbod.fleet", "of after"]


def test_spark_runs_at_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FleetError, match="Spark runs at one of them"), spark_session("local", remote="sc://h"):
        pass
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    with pytest.raises(FleetError, match="--remote sc://h and spark-submit"), spark_session(None, remote="sc://h"):
        pass


def test_spark_remote_is_taken_where_nothing_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    with pytest.raises(FleetError, match=r"--remote sc://127\.0\.0\.1:1: "), spark_session(None):
        pass


@pytest.mark.usefixtures("with_spark")
def test_a_session_here_has_java_and_no_ui_unless_asked(spark: Any) -> None:
    assert not is_connect(spark)
    assert ui_address(spark) is None


@pytest.mark.usefixtures("with_spark", "spark")
def test_an_interrupt_is_still_that_of_the_caller() -> None:
    """PySpark's own handler would have Java tell of all that an interrupt ended, in pages."""
    assert not getattr(signal.getsignal(signal.SIGINT), "__module__", "").startswith("pyspark")


def test_what_spark_logs_is_there_when_it_is_asked_for() -> None:
    assert "rootLogger.level = off\n" in log_settings(verbose=False)
    assert "rootLogger.level = error\n" in log_settings(verbose=True)


@pytest.mark.usefixtures("with_spark")
def test_a_job_that_fails_logs_nothing(spark: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What a user is told of it is one line, of the exception."""
    log4j = spark._jvm.org.apache.logging.log4j
    logger = log4j.LogManager.getLogger("org.apache.spark.executor.Executor")
    assert not logger.isErrorEnabled()
    log4j.core.config.Configurator.setAllLevels("", log4j.Level.ERROR)  # as spark-submit's own configuration may
    assert logger.isErrorEnabled()
    silence_java(spark)
    assert not logger.isErrorEnabled()
    with pytest.raises(Exception, match="boom"):
        spark.sql("select raise_error('boom')").collect()
    logging.getLogger("py4j.clientserver").error("not by this")
    assert not caplog.records


@pytest.mark.usefixtures("with_spark")
def test_all_that_spark_serializes_with_is_there_without_the_jars_that_are_left_out(spark: Any) -> None:
    """Kryo names classes of MLlib, and takes one for missing only when nothing of its jar is there."""
    jvm = spark._jvm
    kryo = jvm.org.apache.spark.serializer.KryoSerializer(spark.sparkContext._jsc.sc().conf())
    assert kryo.newInstance().serialize("kjbod", jvm.scala.reflect.ClassTag.Any()).limit() > 0
    with pytest.raises(Exception, match="ClassNotFoundException"):
        jvm.java.lang.Class.forName("breeze.linalg.Matrix")


@pytest.mark.usefixtures("with_spark")
def test_a_session_apart_has_settings_of_its_own(spark: Any) -> None:
    names = {*session.COMPILED, "spark.sql.shuffle.partitions"}
    before = {name: spark.conf.get(name) for name in names}
    other = session.apart(spark, session.COMPILED)
    assert {name: other.conf.get(name) for name in session.COMPILED} == session.COMPILED
    assert {name: spark.conf.get(name) for name in names} == before
    assert other.conf.get("spark.sql.session.timeZone") == spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_an_error_does_not_wait_for_what_still_runs_and_the_end_does() -> None:
    go, ended = threading.Event(), threading.Event()

    def step() -> None:
        go.wait()
        ended.set()

    with pytest.raises(KeyboardInterrupt), session.at_once(1) as pool:
        pool.submit(step)
        never = pool.submit(step)
        raise KeyboardInterrupt
    assert not ended.is_set()
    assert never.cancelled()
    go.set()
    with session.at_once(1) as pool:
        pool.submit(step)
    assert ended.is_set()


@pytest.mark.usefixtures("with_spark")
def test_what_a_rollup_sets_for_its_size_is_put_back(spark: Any) -> None:
    from kjbod.fleet.rollup import run

    names = {*session.PLAIN, *session.COMPILED, "spark.sql.shuffle.partitions"}
    before = {name: spark.conf.get(name) for name in names}
    large = run._of_samples(session.LARGE_ROWS)
    with pytest.raises(KeyboardInterrupt), session.tuned(spark, large):
        assert {name: spark.conf.get(name) for name in large} == large
        assert spark.conf.get("spark.sql.shuffle.partitions") == str(spark.sparkContext.defaultParallelism)
        raise KeyboardInterrupt
    with session.tuned(spark, run._of_directories(1)):
        assert spark.conf.get("spark.sql.shuffle.partitions") == "1"
        assert {name: spark.conf.get(name) for name in session.PLAIN} == session.PLAIN
    assert {name: spark.conf.get(name) for name in names} == before
