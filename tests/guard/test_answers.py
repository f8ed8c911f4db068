"""The guard at one moment: as metrics, and on a person's screen."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from kjbod.cli.guard import what_else
from kjbod.cli.log_dirs import block
from kjbod.cli.status import guard_lines
from kjbod.ids import Uuid
from kjbod.metrics.listener import render
from kjbod.runtime.control_socket import ControlError
from kjbod_guard.answers import Answers
from kjbod_guard.journal import Demoted, Journal
from kjbod_guard.metrics import metrics_of
from kjbod_guard.picture import ActionCounters, Picture
from kjbod_guard.redundancy import Needs
from kjbod_host.condition import Condition, Level
from kjbod_host.health.block import BlockDevice
from kjbod_host.health.state import Cause, DirectoryHealth, Health
from kjbod_host.health.watched import DirectoryStatus
from tests.metrics.exposition import checked, not_on_the_page, values

ROW: dict[str, Any] = {
    "path": "/mnt/d1",
    "directory_id": "tvZBbOOtuXsXF9uKAMlVNQ",
    "online": False,
    "verdict": "failed",
    "cause": "hung",
    "since_ms": 1_763_737_200_000,
    "cordoned": False,
    "device": "sdb 8:16",
    "model": "disk",
    "serial": "S1",
    "file_system": "ext4",
    "total_bytes": 1 << 30,
    "usable_bytes": 1 << 29,
    "replicas": 5,
    "leaders": 3,
    "followed": 2,
    "future": 0,
    "remembered": False,
    "role": "log",
    "error": "/mnt/d1 failed: fsync",
    "kafka": "online",
    "would": "cut",
    "would_reason": "alone",
}
UNREAD = ROW | dict.fromkeys(
    ("directory_id", "cause", "since_ms", "device", "serial", "leaders", "followed", "replicas")
)
STATUS = DirectoryStatus(
    path="/mnt/d1",
    directory_id="tvZBbOOtuXsXF9uKAMlVNQ",
    health=DirectoryHealth(health=Health.FAILED, cause=Cause.HUNG),
    last_probe=None,
    probes=3,
    probe_failures=1,
    probe_histogram=Counter({"40": 3}),
    blocked_ms=None,
    device=BlockDevice(("sdb",), "8:16", serial="S1"),
    counters=None,
    file_system="ext4",
)
NOW = Picture(
    node_id=1,
    mode="observe",
    cluster_id="c",
    condition=Condition(Level.CRITICAL, ("/mnt/d1 has failed, and Kafka has not noticed",), "well"),
    unbound=None,
    pid=77,
    blind=None,
    controller="c1:9093",
    metadata_offset=12,
    metadata_version=25,
    broker_epoch=9,
    incarnation_id="i",
    fenced=False,
    directories=[ROW, UNREAD | {"path": "/mnt/d2", "verdict": "unreadable", "would": None, "kafka": "unknown"}],
    disks={"/mnt/d1": STATUS},
)


def answers(now: Picture, journal: Journal | None = None) -> Answers:
    async def usage() -> None:
        return None

    acting: Any = None if journal is None else SimpleNamespace(core=SimpleNamespace(journal=journal))
    return Answers(lambda: now, usage, acting=lambda: acting)


async def answer(now: Picture, journal: Journal | None = None) -> dict[str, Any]:
    return await answers(now, journal).status({})


def test_every_series_is_on_the_page_and_tells_what_is() -> None:
    text = render(metrics_of(replace(NOW, needs=Needs(0, 0, 0)))).decode()
    assert not_on_the_page(text) == []
    found = values(text)
    assert found['kjbod_guard_would{log_directory="/mnt/d1",step="cut"}'] == 1
    assert found['kjbod_guard_would{log_directory="/mnt/d1",step="nothing"}'] == 0
    assert found['kjbod_guard_kafka_view{log_directory="/mnt/d1",view="online"}'] == 1
    assert found['kjbod_log_directory_health{log_directory="/mnt/d2",state="unreadable"}'] == 1
    assert found['kjbod_log_directory_leaders{log_directory="/mnt/d1"}'] == 3
    assert 'kjbod_log_directory_leaders{log_directory="/mnt/d2"}' not in found
    assert found["kjbod_guard_broker_bound"] == found["kjbod_guard_metadata_followed"] == 1
    assert found["kjbod_guard_acting"] == found["kjbod_guard_partitions_refused"] == 0
    assert found['kjbod_guard_waiting{log_directory="/mnt/d1",reason="copies"}'] == 0
    assert not [name for name in found if name.startswith("kafka_")]


async def test_a_screen_has_each_directory_with_its_id_disk_and_evidence() -> None:
    lines = guard_lines(await answer(NOW), None)
    assert lines[0] == "CRITICAL: /mnt/d1 has failed, and Kafka has not noticed"
    text = "\n".join(lines)
    assert "broker           process 77" in text
    assert "registration     epoch 9, unfenced" in text
    assert "metadata         followed to offset 12" in text
    place = next(number for number, line in enumerate(lines) if line.endswith("/mnt/d1"))
    assert lines[place].split() == ["failed", "2025-11-21", "15:00:00Z", "3", "2", "online", "cut", "/mnt/d1"]
    assert lines[place + 1] == "  tvZBbOOtuXsXF9uKAMlVNQ, sdb 8:16, serial S1"
    assert lines[place + 2] == "  /mnt/d1 failed: fsync"
    assert any(line.split() == ["unreadable", "?", "?", "?", "unknown", "-", "/mnt/d2"] for line in lines)


async def test_a_screen_says_what_is_not_known() -> None:
    blind = replace(
        NOW, blind="no controller", unbound="no broker runs", broker_epoch=None, fenced=None, controller=None
    )
    text = "\n".join(guard_lines(await answer(blind), 60))
    assert "NOT FOLLOWED: no controller" in text and "no broker runs" in text and "none is known" in text
    assert all(len(line) <= 60 for line in text.splitlines() if "NOT" in line)


async def test_a_screen_says_the_stage_of_each_directory_and_what_the_guard_waits_for() -> None:
    left = ROW | {"step": "left", "step_reason": "its disk cannot be cut"}
    waits = ROW | {"path": "/mnt/d2", "would": "wait", "would_reason": "broker 2 was fenced", "step": "well"}
    waits |= {"waits_for": "budget"}
    acts = replace(
        NOW,
        mode="act",
        broker_state="crippled",
        broker_reason="a fetcher is stuck",
        directories=[left, waits | {"step_reason": None}],
    )
    lines = [line.strip() for line in guard_lines(await answer(acts), None)]
    assert "stage            crippled: a fetcher is stuck" in lines
    assert "stage: left: its disk cannot be cut" in lines and "waits: broker 2 was fenced" in lines
    found = values(render(metrics_of(acts)).decode())
    assert found['kjbod_guard_step{log_directory="/mnt/d1",state="left"}'] == found["kjbod_guard_acting"] == 1
    assert [found[f'kjbod_guard_refused{{log_directory="/mnt/{name}"}}'] for name in ("d1", "d2")] == [1, 1]
    assert found['kjbod_guard_broker_state{state="crippled"}'] == 1
    reasons = {name: value for name, value in found.items() if name.startswith("kjbod_guard_waiting") and value}
    assert list(reasons) == ['kjbod_guard_waiting{log_directory="/mnt/d2",reason="budget"}']


async def test_a_screen_says_how_many_partitions_are_to_be_restored() -> None:
    demoted = {(Uuid.of(7, 2), number): Demoted("d2", "u", (1, 2), (2, 1)) for number in range(2)}
    acts = replace(NOW, mode="act", broker_state="serving", counters=ActionCounters(outcomes={}, evicted=1))
    lines = guard_lines(await answer(acts, Journal(demoted=demoted)), None)
    assert "evicted          1 partition, restored when the disk is back" in lines
    assert "demoted          2 partitions, led again when the disk is quick" in lines
    nothing = "\n".join(guard_lines(await answer(replace(acts, counters=ActionCounters(outcomes={})), Journal()), None))
    assert "evicted  " not in nothing and "demoted  " not in nothing


def refused(number: int, *, left: bool = False) -> dict[str, Any]:
    reason = "INVALID_REPLICA_ASSIGNMENT (39): broker 3 is cordoned"
    row = {"topic": "t", "partition": number, "means": "restore", "reason": reason, "since_ms": 1_763_737_200_000}
    return row | {"left": left}


async def test_a_screen_and_metrics_say_what_the_controllers_refuse_what_is_missing_and_whom_guards_suspect() -> None:
    rows = [refused(number, left=number == 0) for number in range(7)]
    now = replace(NOW, mode="act", broker_state="serving", refused=rows, suspects=[2, 3], needs=Needs(4, 2, 1))
    told = await answer(now, Journal())
    lines = guard_lines(told, None)
    begins = "refused          restore of t-0 since 2025-11-21 15:00:00Z: INVALID_REPLICA_ASSIGNMENT (39): broker 3 is"
    (first,) = [line for line in lines if line.startswith(begins)]
    assert first.endswith("; left to you")
    assert sum(line.endswith("; the guard tries again") for line in lines) == 4
    assert "refused          2 more partitions: kjbod status --json lists all" in lines
    assert any(line.startswith("suspects         the guards of brokers 2, 3 suspect") for line in lines)
    assert told["needs"] == {
        "below_replication_factor": 4,
        "below_min_isr": 2,
        "without_leader": 1,
        "in_sync_offline": 0,
        "out_of_sync": 0,
    }
    found = values(render(metrics_of(now)).decode())
    assert found["kjbod_guard_partitions_refused"] == 7
    names = ("below_replication_factor", "below_min_isr", "without_leader")
    assert [found[f"kjbod_guard_partitions_{name}"] for name in names] == [4, 2, 1]
    blind = values(render(metrics_of(replace(now, needs=None))).decode())
    assert not [name for name in blind if "without_leader" in name], "nobody knows while the metadata are not followed"


@pytest.mark.parametrize("name", ["dirs-add", "move", "move-cancel", "moves", "strays-remove", "strays-restore"])
async def test_who_asks_a_guard_for_an_operation_of_an_agent_is_told_what_to_use_instead(name: str) -> None:
    handler: Any = answers(NOW).handlers()[name]
    with pytest.raises(ControlError, match=r"a guard beside a Kafka broker. Use instead: \w"):
        await handler({})


@pytest.mark.parametrize(
    ("asked", "offered"),
    [
        ("/mnt/d1", "give /mnt/d1/kafka$"),
        ("/mnt/d1/", "give /mnt/d1/kafka$"),
        ("/mnt", "give /mnt/d1/kafka or /mnt/d2/kafka$"),
        ("/mnt/d", "give /mnt/d1/kafka or /mnt/d2/kafka$"),
        ("/srv", "give /mnt/d1/kafka or /mnt/d2/kafka$"),
    ],
)
async def test_who_names_a_mount_point_is_offered_the_log_directory_on_it(asked: str, offered: str) -> None:
    rows = tuple(ROW | {"path": path} for path in ("/mnt/d1/kafka", "/mnt/d2/kafka"))
    told = answers(replace(NOW, directories=rows), Journal())
    with pytest.raises(ControlError, match=f"^{asked} is no log directory of this broker: {offered}"):
        await told.release({"path": asked})


def test_what_was_done_and_how_far_the_broker_is_behind_are_metrics_of_a_guard_that_acts() -> None:
    counters = ActionCounters(
        outcomes={("cut", "refused"): 2},
        crippled=True,
        canary_lag=11,
        evicted=7,
        evicted_since_ms=1_500,
        hand_missing=1,
        missing_rights=("ALTER", "ALTER_CONFIGS"),
    )
    text = render(metrics_of(replace(NOW, mode="act", broker_state="serving", counters=counters))).decode()
    assert not_on_the_page(text) == [] and checked(text)
    found = values(text)
    assert found['kjbod_guard_acts_total{means="cut",outcome="refused"}'] == 2
    assert found['kjbod_guard_acts_total{means="fence",outcome="done"}'] == 0
    assert found["kjbod_guard_broker_crippled"] == found["kjbod_guard_hand_missing"] == 1
    assert found["kjbod_guard_rights_missing"] == 2
    assert found['kjbod_guard_acts_total{means="suspect",outcome="failed"}'] == 0
    assert (found["kjbod_guard_canary_offset_lag"], found["kjbod_guard_evicted_partitions"]) == (11, 7)
    assert found["kjbod_guard_oldest_eviction_timestamp_seconds"] == 1.5
    quiet = values(render(metrics_of(replace(NOW, mode="act", counters=ActionCounters(outcomes={})))).decode())
    assert "kjbod_guard_canary_offset_lag" not in quiet
    assert "kjbod_guard_oldest_eviction_timestamp_seconds" not in quiet


def test_log_dirs_show_what_a_guard_knows() -> None:
    text = "\n".join(block(ROW))
    assert "for Kafka     online" in text and "would         cut: alone" in text
    assert "holds         unknown" in "\n".join(block(UNREAD))


RELEASED: dict[str, Any] = {
    "path": "/mnt/d3/kafka",
    "means": "cut",
    "held": None,
    "mount_point": "/mnt/d3",
    "source": "/dev/sdb1",
    "fstype": "ext4",
    "cluster_id": "kjbodFirstLookCluster0",
}


def test_who_releases_a_directory_is_told_the_next_commands_and_to_stop_nothing_but_the_broker() -> None:
    config = Path("/etc/kafka/server.properties")
    lines = what_else(RELEASED, config)
    for number, begins in enumerate(("Stop the broker", "umount /mnt/d3, ", "The same disk: fsck.ext4 -f /dev/sdb1.")):
        assert lines[number].startswith(begins), lines
    assert " kjbod format -t kjbodFirstLookCluster0 -c /etc/kafka/server.properties --ignore-formatted;" in lines[4]
    assert (
        lines[3].startswith("mount /mnt/d3. Stop if the mount fails")
        and "Start the broker. The guard runs on" in lines[5]
    )
    assert "--ignore-formatted --no-initial-controllers;" in what_else(RELEASED, config, dynamic=True)[4]
    assert "release it again" in what_else(RELEASED | {"held": "it is well, and the broker runs"}, config)[0]
    assert "Restart the broker" in what_else(RELEASED | {"means": "mask"}, config)[1]
    assert "Nothing was done" in what_else(RELEASED | {"means": None, "mount_point": "/"}, config)[0]
