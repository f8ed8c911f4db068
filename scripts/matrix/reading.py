"""Row *read*: what kjbod's command line says of a Kafka's files and servers, beside that Kafka's own tools."""

import itertools
import json
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scripts.matrix import differences
from scripts.matrix.differences import compared
from scripts.matrix.stage import Stage, claim
from scripts.rig.cluster import Cluster, wait_until_serving
from scripts.rig.cluster_watch import ClusterWatch
from scripts.rig.kafka import DUMP_LOG, FEATURES, LOG_DIRS, METADATA_SHELL, STORAGE
from scripts.rig.processes import wait_until

_PARTITIONS: Final = 4
_WAIT_S: Final = 60.0
_SHOWN: Final = 6
_SMALL_SNAPSHOTS: Final = {
    "metadata.log.max.record.bytes.between.snapshots": 1000,
    "metadata.log.max.snapshot.interval.ms": 10_000,
}
_COMMANDS: Final = (("ls", "/image"), ("find", "/image/topics/byName"), ("tree", "/image/features"), ("tree", "/image"))


def read(stage: Stage) -> None:
    """Make logs, snapshots and directories with a Kafka, and compare what is said of them."""
    cluster = stage.cluster(_SMALL_SNAPSHOTS)
    directories = [stage.base / "b1" / f"d{number}" for number in (1, 2)]
    config = cluster.configure_broker(1, directories)
    stage.kit.run(STORAGE, "format", "-t", cluster.cluster_id, "-c", str(config), *_no_voters(stage))
    broker = cluster.launch_broker(stage.kit, config, name="broker")
    wait_until_serving(broker)
    _fill(cluster)
    port = re.findall(r"^listeners=.*:(\d+)$", config.read_text(), re.MULTILINE)[-1]
    _log_dirs(stage, f"127.0.0.1:{port}")
    _features(stage, f"127.0.0.1:{port}")
    metadata = cluster.controller_dir / "__cluster_metadata-0"
    wait_until(lambda: _snapshots(metadata), _WAIT_S, "a snapshot")
    broker.signal(signal.SIGTERM)
    broker.wait(_WAIT_S)
    cluster.stop_controller()
    for file in (config, cluster.controller_config):
        _compare(stage, differences.STORAGE, ["info", "-c", str(file)], STORAGE, ["info", "-c", str(file)])
    files = [metadata / f"{0:020d}.log", _snapshots(metadata)[-1], *cluster.controller_dir.glob("bootstrap.checkpoint")]
    for file, more in itertools.product(files, ([], ["--skip-record-metadata"])):
        ours = ["metadata", "dump", "--text", *more, "--path", str(file)]
        theirs = ["--cluster-metadata-decoder", *more, "--files", str(file)]
        _compare(stage, differences.DUMP_LOG, ours, DUMP_LOG, theirs)
    _shell(stage, _snapshots(metadata)[-1])
    claim(not stage.problems, "; ".join(stage.problems))


def _no_voters(stage: Stage) -> list[str]:
    """Options of a broker's format: from 4.0 on it is asked who votes."""
    return [] if stage.kit.release < (4, 0) else ["--no-initial-controllers"]


def _fill(cluster: Cluster) -> None:
    """Make metadata of several kinds, and wait until they rest."""
    watch = ClusterWatch(cluster.port, cluster.cluster_id)
    try:
        cluster.create_topic("orders", _PARTITIONS, configs={"retention.ms": 3_600_000, "cleanup.policy": "compact"})
        cluster.create_topic("gone", 1)
        cluster.delete_topics("gone")
        wait_until(lambda: watch.assigned_replicas("orders") == _PARTITIONS, _WAIT_S, "directories of all replicas")
    finally:
        watch.close()


def _snapshots(metadata: Path) -> list[Path]:
    """Snapshots that a controller has made, oldest first."""
    return sorted(path for path in metadata.glob("*.checkpoint") if not path.name.startswith("0" * 20))


def _compare(stage: Stage, tool: str, ours: Sequence[str], main_class: str, theirs: Sequence[str]) -> None:
    said = stage.kit.run(main_class, *theirs, check=False)
    done = stage.processes.kjbod(*ours, name="-".join(ours[:2]))
    code = done.wait(_WAIT_S)
    claim(code == said.returncode, f"{tool} {theirs[0]}: exit code {said.returncode}, kjbod {code}: {done.tail()}")
    _same(stage, tool, done.stdout(), said.stdout)


def _same(stage: Stage, tool: str, ours: str, theirs: str) -> None:
    claim(ours, f"{tool}: kjbod says nothing")
    left, met = compared(tool, stage.kit.release, ours, theirs)
    stage.differences += [reason for reason in met if reason not in stage.differences]
    if left:
        stage.problems.append(f"{tool}: {len(left)} lines differ: {' / '.join(left[:_SHOWN])}")


def _features(stage: Stage, server: str) -> None:
    where = ("--bootstrap-server", server, "describe")
    theirs = stage.kit.run(FEATURES, *where).stdout
    ours = stage.kjbod("features", "describe", "--bootstrap-server", server)
    _same(stage, differences.FEATURES, _words(ours), _words(theirs))


def _words(text: str) -> str:
    """Lines without the width of columns, and the epoch, which goes on."""
    return "\n".join(re.sub(r"Epoch: \d+", "Epoch:", " ".join(line.split())) for line in text.splitlines())


def _log_dirs(stage: Stage, server: str) -> None:
    said = stage.kit.run(LOG_DIRS, "--bootstrap-server", server, "--describe").stdout.splitlines()[-1]
    theirs = [
        f"{one['logDir']}: {len(one['partitions'])} replicas, {sum(each['size'] for each in one['partitions'])} bytes"
        for broker in json.loads(said)["brokers"]
        for one in broker["logDirs"]
    ]
    found = json.loads(stage.kjbod("cluster", "log-dirs", "--bootstrap-server", server, "--json"))
    ours = [
        f"{one['path']}: {one['replicas']} replicas, {one['replica_bytes']} bytes"
        for broker in found["brokers"]
        for one in broker["log_dirs"]
    ]
    _same(stage, differences.LOG_DIRS, "\n".join(sorted(ours)), "\n".join(sorted(theirs)))


def _shell(stage: Stage, snapshot: Path) -> None:
    if not stage.kit.has(METADATA_SHELL):
        stage.absent.append(f"kafka-metadata-shell of {stage.kit.version}: Maven has no kafka-shell of it")
        return
    for command in _COMMANDS:
        theirs = stage.kit.look_into(snapshot, *command)
        ours = stage.kjbod("metadata", "shell", "--snapshot", str(snapshot), *command)
        _same(stage, differences.SHELL, ours, theirs)
