"""Every API at a secured controller, by each kind of peer: nobody who has not shown who it is gets an answer, and
nobody without the right changes anything; as at Kafka's own controller."""

from pathlib import Path

import pytest

from kjbod.wire.messages import ApiKey
from scripts.brokers.peers import ALL_RIGHTS, differences, start
from scripts.brokers.secured import ask_all
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import Processes
from scripts.rig.secured import Secured
from tests.depth import at

pytestmark = pytest.mark.usefixtures("kafka_kit")
APIS_MIN = 30


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SSL"])
def test_no_peer_gets_further_than_at_kafkas_controller_and_none_without_rights_changes_anything(
    tmp_path: Path, kafka_kit: KafkaKit, protocol: str
) -> None:
    secured = Secured(tmp_path / "stores")
    found = {}
    for kafka in (False, True):
        base = tmp_path / ("kafka" if kafka else "kjbod")
        base.mkdir()
        with Processes(base / "logs") as processes:
            cluster = start(base, processes, kafka_kit, secured, protocol, kafka=kafka)
            found[kafka] = ask_all(cluster.port, secured, protocol, base, at(quick=8, ci=8, deep=1))
            cluster.stop_controller()
    assert len({key for key, _ in found[False]}) >= APIS_MIN
    assert differences(found[False], found[True]) == []


def test_a_peer_that_gets_further_than_at_kafkas_controller_is_named() -> None:
    ours = {(ApiKey.VOTE, "no right"): "NONE", (ApiKey.VOTE, ALL_RIGHTS): "NONE", (ApiKey.FETCH, "no TLS"): "closed"}
    kafkas = dict.fromkeys(ours, "CLUSTER_AUTHORIZATION_FAILED")
    assert differences(ours, kafkas) == [
        "VOTE, no right: NONE on kjbod's controller, CLUSTER_AUTHORIZATION_FAILED on Kafka's"
    ]
