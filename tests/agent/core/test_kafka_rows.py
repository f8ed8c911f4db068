"""Kafka's own scenarios for directories, start, failure, placement and moves, by their ids in kafka-jbod.md 9.3 to 9.7.

Most of them are tests of the modules that they are about; here are those that need several of them, and, at the end,
the table: each id is the name of a test somewhere, or is named with the reason why no agent can have it.
"""

import ast
import asyncio
import errno
import re
from collections.abc import Callable, Coroutine, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kjbod.ids import UNASSIGNED, Uuid
from kjbod.metadata.records import FeatureLevelRecord, RegisterBrokerRecord
from kjbod.metadata.versions import DIRECTORY_ASSIGNMENT, METADATA_VERSION
from kjbod.wire.messages import AssignReplicasToDirsRequest, BrokerRegistrationRequest
from kjbod_agent.replicas.inventory import Inventory, Wanted
from kjbod_agent.replicas.table import Action
from kjbod_host.partitions import TopicIdPartition
from kjbod_host.storage.api import StorageOptions
from kjbod_host.storage.memory import MemoryDisk, MemoryStorageAgent
from tests.agent.core.opened import Disks
from tests.agent.core.test_broker import D1, D2, World

Run = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]
TESTS = Path(__file__).parents[2]


def formatted(directory_id: Uuid | None) -> MemoryDisk:
    line = "" if directory_id is None else f"directory.id={directory_id}\n"
    return MemoryDisk(meta_properties=f"version=1\nnode.id=1\ncluster.id=c\n{line}".encode())


# ------------------------------------------------------------------------------------------------------------ start-up


def test_su_8_of_five_directories_two_have_an_id_one_no_file_and_two_a_file_without(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        ids = (Uuid.of(5, 1), Uuid.of(5, 2))
        disks = {
            "/d1": formatted(ids[0]),
            "/d2": formatted(ids[1]),
            "/d3": MemoryDisk(),
            "/d4": formatted(None),
            "/d5": formatted(None),
        }
        storage = MemoryStorageAgent(StorageOptions(clock=clock), disks)
        found = [(await storage.directory(path).load(timeout_ms=1000)).directory_id for path in disks]
        assert found == [str(ids[0]), str(ids[1]), None, None, None]

    virtual(main)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EIO])
def test_su_10_a_directory_whose_lock_cannot_be_made_is_offline_and_the_others_start(virtual: Run, number: int) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, ["/d1", "/d2", "/d3"])
        disks["/d2"].fail(number, ["lock"])
        opened = await disks.open()
        assert opened.failed.keys() == {disks.ids["/d2"]}
        assert len(opened.start_up.log_dirs) == 3, "registered, and reported offline at once, as in Kafka"
        assert disks["/d2"].locked_by is None

    virtual(main)


def test_su_11_a_directory_that_cannot_take_a_new_replica_is_passed_over() -> None:
    inventory = Inventory([(D1, "/d1"), (D2, "/d2")])
    wanted = Wanted(TopicIdPartition(Uuid.of(3, 1), 0), "t", UNASSIGNED, new=True)
    first = inventory.decide(wanted)
    assert (first.action, first.directory_id) == (Action.CREATE_AND_ASSIGN, D1)
    inventory.not_created(wanted.partition)
    second = inventory.decide(wanted)
    assert (second.action, second.directory_id) == (Action.CREATE_AND_ASSIGN, D2)


def test_su_15_several_directories_under_an_old_metadata_version_are_an_error_that_is_said_and_not_the_end(
    virtual: Run,
) -> None:
    async def main(clock: Any) -> None:
        async with World(clock) as world:
            world.commit(FeatureLevelRecord(name=METADATA_VERSION, feature_level=DIRECTORY_ASSIGNMENT - 1))
            world.topic()
            await asyncio.sleep(5)
            (said,) = world.log.of("metadata.version.too.old")
            assert said["needed"] == DIRECTORY_ASSIGNMENT
            assert not world.controller.of(AssignReplicasToDirsRequest), "the cluster has no place for them"
            assert not world.broker.ended.done()
            world.commit(FeatureLevelRecord(name=METADATA_VERSION, feature_level=DIRECTORY_ASSIGNMENT))
            await world.until(lambda: bool(world.controller.of(AssignReplicasToDirsRequest)))

    virtual(main)


def test_su_15_one_directory_under_an_old_metadata_version_is_nothing_to_say(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with World(clock) as world:
            world.broker._multiple = False
            world.commit(FeatureLevelRecord(name=METADATA_VERSION, feature_level=DIRECTORY_ASSIGNMENT - 1))
            await asyncio.sleep(5)
            assert not world.log.of("metadata.version.too.old")

    virtual(main)


OLD, NEW = DIRECTORY_ASSIGNMENT - 1, DIRECTORY_ASSIGNMENT


@pytest.mark.parametrize(
    ("log_dirs", "levels", "in_one_delta", "resends"),
    [
        ((), (NEW,), True, 1),
        ((), (OLD, NEW), False, 1),
        ((), (OLD,), False, 0),
        ((D1, D2), (OLD, NEW), False, 0),
    ],
    ids=["reached at once", "reached later", "not reached", "directories are there"],
)
def test_su_16_a_registration_without_directories_is_repeated_once_when_the_cluster_can_hold_them(
    virtual: Run, log_dirs: tuple[Uuid, ...], levels: tuple[int, ...], in_one_delta: bool, resends: int
) -> None:
    async def main(clock: Any) -> None:
        async with World(clock) as world:
            world.commit(FeatureLevelRecord(name=METADATA_VERSION, feature_level=OLD))
            await asyncio.sleep(1)
            before = len(world.controller.of(BrokerRegistrationRequest))
            own = RegisterBrokerRecord(
                broker_id=1,
                incarnation_id=Uuid.of(1, 1),
                broker_epoch=100,
                end_points=(),
                features=(),
                fenced=False,
                log_dirs=log_dirs,
            )
            features = [FeatureLevelRecord(name=METADATA_VERSION, feature_level=level) for level in levels]
            if in_one_delta:
                world.commit(own, *features)
            else:
                world.commit(own)
                for feature in features:
                    await asyncio.sleep(1)
                    world.commit(feature)
            await asyncio.sleep(5)
            assert len(world.controller.of(BrokerRegistrationRequest)) - before == resends

    virtual(main)


# ----------------------------------------------------------------------------------------------------------- the table

ROWS = (
    *(f"SU-{n}" for n in range(1, 17)),
    *(f"LC-{n}" for n in range(1, 17)),
    *(f"RP-{n}" for n in range(1, 11)),
    *(f"AM-{n}" for n in range(1, 10)),
    *(f"MV-{n}" for n in range(1, 19)),
    *(f"SY-{n}" for n in range(1, 12)),
)

NOT_AN_AGENT_S = {
    "LC-9": "data plane: the error that a producer gets from a leader on a dead disk",
    "LC-11": "data plane: a replica fetcher thread survives the failure of one of its partitions",
    "LC-12": "ZooKeeper only: a broker of 0.11 halts",
    "LC-13": "ZooKeeper only: there the metadata directory may fail; in KRaft, and here, its failure ends the process",
    "LC-15": "the controller's queue, in which heartbeats time out while its only thread is busy; the stub has none",
    "MV-6": "data plane: epoch fencing, truncation and fetch order of the copy by fetching",
    "MV-16": "data plane: tiered storage, which an agent does not have",
}


PARAMETER = re.compile(r"(su|lc|rp|am|mv|sy)_\d+_[a-z]")


@cache
def names_of_tests() -> frozenset[str]:
    """Names of all test functions, and the ids of their parameters that begin with the id of a row."""
    return frozenset(_names_of_tests())


def _names_of_tests() -> Iterator[str]:
    for path in TESTS.rglob("test_*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield node.name
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and PARAMETER.match(node.value):
                yield f"test_{node.value}"


def rows_in(name: str) -> Iterator[str]:
    """The ids in the name of a test: ``test_rp_2_rp_3_...`` has two, ``test_sy_1_to_4_...`` has four."""
    for kind, first, last in re.findall(r"(?<=_)(su|lc|rp|am|mv|sy)_?(\d+)(?:_to_(\d+))?(?=_|$)", name):
        for number in range(int(first), int(last or first) + 1):
            yield f"{kind.upper()}-{number}"


def test_each_row_of_the_reference_is_a_test_or_is_named_as_none_of_an_agent_s() -> None:
    tested = {row for name in names_of_tests() for row in rows_in(name)}
    missing = [row for row in ROWS if row not in tested and row not in NOT_AN_AGENT_S]
    assert not missing, f"neither a test nor a reason: {', '.join(missing)}"


def test_no_row_has_both_a_test_and_a_reason_and_no_name_has_an_id_that_does_not_exist() -> None:
    tested = {row for name in names_of_tests() for row in rows_in(name)}
    assert not tested & NOT_AN_AGENT_S.keys()
    assert not tested - set(ROWS)
    assert not NOT_AN_AGENT_S.keys() - set(ROWS)
