"""Unmodified Apache Kafka 4.4.0 beside the controller at the level at which a new one begins.

Older versions are shown by the tests that use the fixture ``kafka_kit``: the rig keeps their clusters at 4.3.
"""

from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from kjbod.ids import Uuid
from kjbod.metadata import versions
from kjbod.metadata.image import MetadataImage
from kjbod.metadata.reading import load
from kjbod.wire.messages import ControllerRegistrationRequest, ControllerRegistrationRequestListener
from scripts.brokers.cluster import RealCluster
from scripts.rig.cluster import ask
from scripts.rig.kafka import CLUSTER, SERVER, STORAGE, KafkaKit, broker_properties, controller_properties
from scripts.rig.processes import Processes
from tests.preloading import run_kjbod
from tests.storage_tool.test_kafka_storage import files_of

FAILING = (1, 3)
"""The third directory of broker 1 is on a real disk of its own."""
OTHER_CONTROLLER = 3001
CLUSTER_ID = "kjbodNewestKafkaAAAAAA"
STATIC = "controller.quorum.bootstrap.servers=", "controller.quorum.voters=3000@"


@pytest.mark.parametrize(
    ("role", "flags"),
    [
        ("dynamic", ("--standalone",)),
        ("dynamic", ("--no-initial-controllers",)),
        ("dynamic", ("--standalone", "--release-version", "4.4-IV1", "--feature", "share.version=1")),
        ("static", ()),
        ("broker", ("--release-version", "4.4")),
    ],
)
def test_format_leaves_the_files_that_kafkas_own_leaves(
    tmp_path: Path, newest_kit: KafkaKit, role: str, flags: tuple[str, ...]
) -> None:
    found = []
    for name in ("real", "ours"):
        root = tmp_path / name
        root.mkdir()
        config = root / "server.properties"
        if role == "broker":
            config.write_text(broker_properties(1, 19092, 19093, [root / "d1", root / "d2"]))
        else:
            text = controller_properties(3000, 19093, root / "d1")
            config.write_text(text.replace(*STATIC) if role == "static" else text)
        command = ("format", "-t", CLUSTER_ID, "-c", str(config), *flags)
        if name == "real":
            newest_kit.run(STORAGE, *command)
        else:
            run_kjbod(*command, check=True)
        found.append(files_of(root))
    assert found[0] == found[1]


def metadata(cluster: RealCluster) -> MetadataImage:
    """What the controller has written so far."""
    return load(cluster.controller_dir).image


@pytest.mark.usefixtures("as_root")
@pytest.mark.timeout(600)
def test_brokers_of_the_newest_kafka_live_on_a_new_controller_and_older_ones_do_not_join(
    tmp_path: Path, newest_kit: KafkaKit, kafka_kit: KafkaKit, processes: Processes
) -> None:
    newest_release = versions.release_name(versions.LATEST)
    base = tmp_path / "cluster"
    with RealCluster(base, newest_kit, "kjbod", brokers=2, disks=[FAILING], release=newest_release) as cluster:
        cluster.start()
        topic = NewTopic("t", num_partitions=6, replication_factor=2)
        cluster.admin.create_topics([topic])["t"].result()
        cluster.wait_until_in_sync()
        image = metadata(cluster)
        assert image.metadata_version == versions.LATEST
        assert {broker.id: (broker.fenced, len(broker.log_dirs)) for broker in image.brokers.values()} == {
            1: (False, 3),
            2: (False, 3),
        }

        older = cluster.configure_broker(3, [base / "b3-d1"])
        kafka_kit.format(older, cluster.cluster_id)
        broker = processes.start(kafka_kit.command(SERVER, str(older)), name="older")
        broker.wait_for_text(
            "Unable to register broker 3 because the controller returned error UNSUPPORTED_VERSION", 60
        )
        broker.kill()
        assert 3 not in metadata(cluster).brokers

        # A controller's registration ends by Kafka's own tool, straight and through a broker.
        for way, port in (("--bootstrap-controller", cluster.port), ("--bootstrap-server", cluster.ports[2])):
            listener = ControllerRegistrationRequestListener(
                name="CONTROLLER", host="127.0.0.1", port=1, security_protocol=0
            )
            registration = ControllerRegistrationRequest(
                controller_id=OTHER_CONTROLLER, incarnation_id=Uuid.of(7, 7), listeners=(listener,)
            )
            assert ask(cluster.port, registration).error_code == 0
            assert OTHER_CONTROLLER in metadata(cluster).controllers
            asked = ("unregister-controller", way, f"127.0.0.1:{port}", "--id", str(OTHER_CONTROLLER))
            newest_kit.run(CLUSTER, *asked)
            assert OTHER_CONTROLLER not in metadata(cluster).controllers
            assert "is not currently registered" in newest_kit.run(CLUSTER, *asked, check=False).stderr

        cluster.break_disk(FAILING)
        cluster.wait_for("the failure to be recorded", lambda: len(metadata(cluster).brokers[1].log_dirs) == 2)
        assert not metadata(cluster).brokers[1].fenced
