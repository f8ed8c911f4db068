"""A guard beside a real broker that speaks SASL_SSL or mutual TLS alone, with controllers that do: with the broker's
own file it follows the metadata, asks the broker, and saves it from a disk that hangs."""

import contextlib
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kjbod.cli import main as cli
from kjbod.faults.disks import RealDisk
from kjbod.faults.orders import FaultMode
from scripts.rig.cluster import Cluster, wait_until_guarding, wait_until_serving
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import Processes, free_port, wait_until
from scripts.rig.secured import MECHANISMS, OAUTHBEARER, Secured, scram_options
from tests.depth import only_deep
from tests.guard.conftest import Beside


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as found:
        yield found


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("SASL_SSL", MECHANISMS[-1]),
        pytest.param("SASL_SSL", OAUTHBEARER, marks=only_deep("another mechanism")),
        pytest.param("SSL", "", marks=only_deep("another protocol")),
    ],
)
def test_a_secured_broker_is_guarded_with_its_own_file(
    protocol: str,
    mechanism: str,
    tmp_path: Path,
    processes: Processes,
    kafka_kit: KafkaKit,
    real_disk: Callable[..., RealDisk],
    beside: Callable[..., Beside],
    capsys: pytest.CaptureFixture[str],
    stack: contextlib.ExitStack,
) -> None:
    secured = Secured(tmp_path / "stores")
    if mechanism == OAUTHBEARER:
        stack.enter_context(secured.identity_provider())
        kafka_kit = kafka_kit.with_options(*secured.java_options())
    cluster = Cluster(tmp_path, processes, kafka=kafka_kit, properties=secured.node(protocol, mechanism))
    kafka_kit.format(cluster.controller_config, cluster.cluster_id, "--standalone", *scram_options())
    cluster.start_controller()
    disks = [real_disk(log_dir="kafka") for _ in range(2)]
    lines = {**secured.broker(protocol, free_port(), mechanism), "metadata.log.dir": tmp_path / "m1"}
    config = cluster.configure_broker(1, [disk.log_dir for disk in disks], lines)
    cluster.format_broker(config)
    broker = cluster.launch_broker(kafka_kit, config, name="broker")
    wait_until_serving(broker)
    port = free_port()
    watch = beside(config, guard_mode="act", metrics_listener=f"127.0.0.1:{port}")
    assert cli.run(["guard", "check", *watch.arguments]) == 0
    checked = capsys.readouterr().out
    assert "metadata.version" in checked and "broker 1 is registered" in checked, checked

    guard = watch.start()
    wait_until_guarding(guard)
    disks[1].set(FaultMode.HANG)
    bad = str(disks[1].log_dir)
    guard.wait_for_event("guard.kafka.view", 60, path=bad, view="offline")
    assert broker.running and not guard.events("guard.done", means="kill")
    assert not [line for line in guard.events("guard.hand.missing") if "cannot be asked" in line["reason"]]
    assert cli.run(["status", *watch.arguments]) == 0
    shown = capsys.readouterr().out
    assert "1 of 3 directories failed" in shown and "metadata         followed" in shown, shown
    wait_until(lambda: "kjbod_guard_canary_offset_lag 0" in metrics(port), 30, "an answer of the broker")
    assert guard.stop() == 0
