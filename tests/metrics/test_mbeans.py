"""Kafka's MBeans have the names that the JMX exporter gives them."""

import re
from pathlib import Path

import pytest

from kjbod.metrics.listener import render
from kjbod.metrics.mbeans import (
    MBean,
    Reading,
    Series,
    default_series,
    example_series,
    families,
    names_of,
    quoted,
    strimzi_series,
)
from kjbod_agent import metrics as agent_metrics
from kjbod_controller_stub import metrics as controller_metrics
from scripts.rig.kafka import JMX, KafkaKit
from tests.kafka_pair import KafkaPair
from tests.metrics.exposition import checked, values
from tests.metrics.jmx import object_name

OFFLINE = MBean("kafka.log", "LogManager", "OfflineLogDirectoryCount", "Text.")
DIRECTORY = MBean("kafka.log", "LogManager", "LogDirectoryOffline", "Text.", "logDirectory")
UNCLEAN = MBean("kafka.controller", "ControllerStats", "UncleanLeaderElectionsPerSec", "Text.", attribute="Count")
QUEUE = MBean("kafka.controller", "ControllerEventManager", "EventQueueTimeMs", "Text.", attribute="99thPercentile")
QUEUED = MBean("kafka.controller", "ControllerEventManager", "EventQueueTimeMs", "Text.", attribute="Count")
MARK = MBean("kafka.server", "raft-metrics", "", "Text.", attribute="high-watermark")
OLD = MBean("org.apache.kafka.server", "AssignmentsManager", "QueuedReplicaToDirAssignments", "Text.")
BROKER = MBean("kafka.controller", "KafkaController", "BrokerRegistrationState", "Text.", "broker")


@pytest.mark.parametrize(
    ("bean", "key", "default", "example"),
    [
        (
            OFFLINE,
            "",
            'kafka_log_LogManager_Value{name="OfflineLogDirectoryCount"}',
            "kafka_log_logmanager_offlinelogdirectorycount",
        ),
        (
            DIRECTORY,
            "/disks/d1",
            r'kafka_log_LogManager_Value{logDirectory="\"/disks/d1\"",name="LogDirectoryOffline"}',
            r'kafka_log_logmanager_logdirectoryoffline{logDirectory="\"/disks/d1\""}',
        ),
        (
            UNCLEAN,
            "",
            'kafka_controller_ControllerStats_Count{name="UncleanLeaderElectionsPerSec"}',
            "kafka_controller_controllerstats_uncleanleaderelections_total",
        ),
        (
            QUEUE,
            "",
            'kafka_controller_ControllerEventManager_99thPercentile{name="EventQueueTimeMs"}',
            'kafka_controller_controllereventmanager_eventqueuetimems{quantile="0.99"}',
        ),
        (
            QUEUED,
            "",
            'kafka_controller_ControllerEventManager_Count{name="EventQueueTimeMs"}',
            "kafka_controller_controllereventmanager_eventqueuetimems_count",
        ),
        (
            OLD,
            "",
            'org_apache_kafka_server_AssignmentsManager_Value{name="QueuedReplicaToDirAssignments"}',
            "kafka_server_assignmentsmanager_queuedreplicatodirassignments",
        ),
        (
            BROKER,
            "7",
            'kafka_controller_KafkaController_Value{broker="7",name="BrokerRegistrationState"}',
            'kafka_controller_kafkacontroller_brokerregistrationstate{broker="7"}',
        ),
        (MARK, "", "kafka_server_raft_metrics_high_watermark", "kafka_server_raftmetrics_high_watermark"),
    ],
)
def test_an_mbean_has_the_exporter_s_default_name_and_that_of_its_example(
    bean: MBean, key: str, default: str, example: str
) -> None:
    text = render(families([Reading(bean, 5, key)])).decode()
    checked(text)
    assert values(text) == {default: 5.0, example: 5.0}


def test_the_names_that_strimzi_s_alerts_look_for_are_there() -> None:
    """Of ``prometheus-kafka-rules.yaml``, those of which kjbod has something to say."""
    beans = (*agent_metrics.MBEANS, *controller_metrics.MBEANS)
    names = {series.name for bean in beans for series in names_of(bean, "1" if bean.key else "")}
    assert names >= {
        "kafka_log_logmanager_offlinelogdirectorycount",
        "kafka_controller_kafkacontroller_activecontrollercount",
        "kafka_controller_kafkacontroller_offlinepartitionscount",
    }


def test_mbeans_that_share_a_name_make_one_series() -> None:
    both = [Reading(bean, 3) for bean in agent_metrics.QUEUED_ASSIGNMENTS]
    text = render(families(both)).decode()
    checked(text)
    assert values(text) == {
        'kafka_server_KafkaServer_Value{name="QueuedReplicaToDirAssignments"}': 3,
        "kafka_server_kafkaserver_queuedreplicatodirassignments": 3,
        'org_apache_kafka_server_AssignmentsManager_Value{name="QueuedReplicaToDirAssignments"}': 3,
        "kafka_server_assignmentsmanager_queuedreplicatodirassignments": 3,
        'kafka_server_AssignmentsManager_Value{name="QueuedReplicaToDirAssignments"}': 3,
    }


@pytest.mark.parametrize(
    ("value", "text"), [("plain-1 %.", "plain-1 %."), ("/d", '"/d"'), ('a"b*c?\\d', r'"a\"b\*c\?\\d"'), ("é", '"é"')]
)
def test_values_are_quoted_as_jmx_wants_them(value: str, text: str) -> None:
    assert quoted(value) == text


def test_an_mbean_without_rules_is_untyped() -> None:
    assert default_series(OFFLINE).kind == "unknown"
    assert example_series(OFFLINE) == Series("kafka_log_logmanager_offlinelogdirectorycount", "gauge")


# --- held against real Kafka

ONLY_AT_A_START = {"kafka.log:type=LogManager,name=remainingLogsToRecover,dir=*"}
"""There while Kafka loads its logs."""
ONLY_IN_THE_KIP = {"kafka.server:type=KafkaServer,name=QueuedReplicaToDirAssignments"}


def mbeans_of(kit: KafkaKit, port: int) -> dict[str, str]:
    """Value of each attribute of each MBean of a server, by ``object name:attribute``."""
    url = f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{port}/jmxrmi"
    options = ("--jmx-url", url, "--one-time", "--report-format", "properties")
    lines = kit.run(JMX, *options).stdout.splitlines()
    return {found[1]: found[2] for line in lines if (found := re.fullmatch(r"(.*:[\w-]+)=(.*)", line))}


@pytest.mark.usefixtures("kafka_kit")
def test_real_kafka_has_every_mbean_whose_names_are_served(kafka_kit: KafkaKit, kafka_pair: KafkaPair) -> None:
    def missing(beans: tuple[MBean, ...], there: dict[str, str]) -> set[str]:
        names = {re.sub(r",(?!name=)(\w+)=(\"[^\"]*\"|[^,:]*)", r",\1=*", name) for name in there}
        return {object_name(bean) for bean in beans if f"{object_name(bean)}:{bean.attribute}" not in names}

    broker = mbeans_of(kafka_kit, kafka_pair.broker_jmx)
    assert missing(agent_metrics.MBEANS, broker) == ONLY_AT_A_START | ONLY_IN_THE_KIP
    assert missing(controller_metrics.MBEANS, mbeans_of(kafka_kit, kafka_pair.controller_jmx)) == set()
    path = str((kafka_pair.base / "d1").resolve())
    assert f"kafka.log:type=LogManager,name=LogDirectoryOffline,logDirectory={quoted(path)}:Value" in broker


README = Path(__file__).parents[2] / "kjbod" / "metrics" / "README.md"


@pytest.mark.parametrize("beans", [agent_metrics.MBEANS, controller_metrics.MBEANS], ids=["agent", "controller"])
def test_the_readme_s_tables_have_each_mbean_with_its_names(beans: tuple[MBean, ...]) -> None:
    def shown(series: Series, key: str) -> str:
        labels = ",".join(f"{name}=…" if name == key else f'{name}="{value}"' for name, value in series.labels)
        name = series.name + ("_total" if series.kind == "counter" else "")
        return f"`{name}{{{labels}}}`" if labels else f"`{name}`"

    rows = [
        line.split(" | ") for line in README.read_text().splitlines() if line.startswith("| `") and ":type=" in line
    ]
    told = {row[0].removeprefix("| "): (row[1], row[2].removesuffix(" |")) for row in rows}
    for bean in beans:
        key = "1" if bean.key else ""
        attribute = "" if bean.attribute == "Value" else f" {bean.attribute}"
        strimzi = shown(strimzi_series(bean, key), bean.key) + ("" if bean.name else " (Strimzi)")
        assert told[f"`{object_name(bean)}`{attribute}"] == (shown(default_series(bean, key), bean.key), strimzi)
