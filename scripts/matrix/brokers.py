"""Row *brokers*: unmodified brokers of a Kafka on kjbod's controller, which is formatted for that release."""

from typing import Final

from kjbod.metadata import versions
from kjbod.metadata.reading import load
from scripts.brokers.cluster import RealCluster
from scripts.brokers.load import Writer, read_all
from scripts.matrix.stage import Stage, claim

_RULES: Final = ("kip-858", "kafka")
_FAILING: Final = (1, 3)
"""The third directory of broker 1 is on a real disk."""
_PARTITIONS: Final = 6
_RECORDS: Final = 100


def level_of(release: tuple[int, int]) -> int:
    """Return the metadata.version that a release brings, or the newest one that kjbod writes if that is older."""
    return min(versions.release_level("{}.{}".format(*release)), versions.LATEST)


def brokers(stage: Stage) -> None:
    """Brokers register, serve, and lose a disk, which is recorded; no acknowledged record is lost."""
    level = level_of(stage.kit.release)
    own = versions.release_level("{}.{}".format(*stage.kit.release))
    if level < own:
        stage.absent.append(
            f"kjbod's controller at {versions.release_name(own)}: its newest level is {versions.release_name(level)}"
        )
    for rules in _RULES:
        with RealCluster(
            stage.base / rules,
            stage.kit,
            "kjbod",
            brokers=2,
            disks=[_FAILING],
            properties={"kjbod.controller.rules": rules},
            release=versions.release_name(level),
        ) as cluster:
            _lose_a_disk(cluster, level)


def _lose_a_disk(cluster: RealCluster, level: int) -> None:
    cluster.start()
    cluster.create_topic("events", _PARTITIONS, brokers=cluster.ids, in_turns=True)
    cluster.wait_until_in_sync()
    with Writer(cluster.bootstrap, "events") as writer:

        def go_on() -> None:
            more = len(writer.acknowledged) + _RECORDS
            cluster.wait_for(f"{more} records", lambda: len(writer.acknowledged) >= more)

        go_on()
        cluster.break_disk(_FAILING)
        cluster.wait_for("the replicas on the dead disk to leave the ISR", cluster.out_of_sync)
        go_on()
        for broker in cluster.ids:
            claim(cluster.brokers[broker].running, f"broker {broker} ended: {cluster.brokers[broker].tail()}")
        cluster.stop_broker(_FAILING[0])
        cluster.mend_disk(_FAILING)
        cluster.start_broker(_FAILING[0])
        cluster.wait_until_in_sync()
        go_on()
    seen = read_all(cluster.bootstrap, ["events"])
    lost = writer.acknowledged - set(seen)
    claim(not lost and not writer.failed, f"{len(lost)} records lost, {writer.failed} given up: {writer.last_error}")
    cluster.stop()
    image = load(cluster.controller_dir).image
    claim(image.metadata_version == level, f"the controller's metadata.version is {image.metadata_version}")
