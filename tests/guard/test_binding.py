"""Whose directories, process and registration these are."""

import random

import pytest
from msgspec.structs import replace

from kjbod.ids import Uuid, random_agent_incarnation
from kjbod.meta_properties import trouble_with
from kjbod_guard.binding import (
    FORMAT,
    Holder,
    heads,
    moved,
    name_of,
    outdated,
    overrides,
    why_not_ours,
    why_not_registered,
)
from kjbod_guard.observing import Observed
from kjbod_host.storage.api import LoadedDirectory, MountIdentity
from tests.guard.test_observing import D1, D2, D3, of, registered

SOURCE = "/etc/kafka/server.properties"
PROPERTIES = {"node.id": "1", "log.dirs": "/mnt/d1,/mnt/d2", "process.roles": "broker"}


def loaded(path: str, meta: str | None) -> LoadedDirectory:
    identity = MountIdentity(1, 1, "8:1", 2, "0", None)
    content = None if meta is None else meta.encode()
    return LoadedDirectory(path, path, content, None, (), (), False, identity, 0, 0, False, None)


def meta(directory_id: Uuid | None, node: int = 1, cluster: str = "c") -> str:
    own = "" if directory_id is None else f"directory.id={directory_id}\n"
    return f"version=1\nnode.id={node}\ncluster.id={cluster}\n{own}"


def test_directories_of_this_node_and_cluster_are_watched() -> None:
    found = heads(1, {"/d1": loaded("/d1", meta(D1)), "/d2": loaded("/d2", meta(D2))})
    assert {path: one.directory_id for path, one in found.owned.items()} == {"/d1": D1, "/d2": D2}
    assert found.cluster_id == "c" and not found.foreign


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (meta(D3, node=2), "/x belongs to node 2, not 1: it is not watched"),
        (meta(D3, cluster="other"), "/x belongs to cluster other, not c: it is not watched"),
        (meta(D3, cluster=""), "/x belongs to cluster (none: cluster.id is empty), not c: it is not watched"),
        (meta(D1), f"/x has the directory.id {D1} of /d1: it is not watched"),
        (meta(None), trouble_with(meta(None).encode(), "/x", FORMAT)),
        (None, "/x has no meta.properties: is its disk mounted, and formatted?"),
        ("version=0\n", trouble_with(b"version=0\n", "/x", FORMAT)),
        ("version=one\n", trouble_with(b"version=one\n", "/x", FORMAT)),
    ],
)
def test_any_other_directory_is_named_and_left_alone(text: str | None, reason: str) -> None:
    own = {"/d1": loaded("/d1", meta(D1)), "/d2": loaded("/d2", meta(D2))}
    found = heads(1, {**own, "/x": loaded("/x", text)})
    assert found.foreign == {"/x": reason} and set(found.owned) == {"/d1", "/d2"}


def test_a_cluster_that_is_known_counts_for_directories_that_come_later() -> None:
    assert heads(1, {"/x": loaded("/x", meta(D1, cluster="new"))}, "c").foreign


def test_disks_that_were_mounted_in_each_others_place_are_named() -> None:
    found = heads(1, {"/d1": loaded("/d1", meta(D2)), "/d2": loaded("/d2", meta(D1))})
    assert moved({"/d1": D1, "/d2": D2}, found.owned.values()) == [
        f"/d1 has the directory.id {D2}, which was at /d2 before",
        f"/d2 has the directory.id {D1}, which was at /d1 before",
    ]
    assert moved({"/d1": D2}, found.owned.values()) == []


# --------------------------------------------------------------------------------------------------------- the process


def kafka(*arguments: str, pid: int = 7, file: str = SOURCE) -> Holder:
    return Holder(pid, 1, ("java", "-Xmx1g", "kafka.Kafka", *arguments), {file: file, "server.properties": SOURCE})


OURS = kafka(SOURCE)


@pytest.mark.parametrize(
    ("holders", "reason"),
    [
        ({"/d1": OURS, "/d2": OURS}, None),
        ({"/d1": OURS, "/d2": None}, None),  # Kafka holds no lock where it could not begin
        ({"/d1": kafka("server.properties")}, None),
        ({"/d1": kafka(SOURCE, "--override", "num.io.threads=4")}, None),
        ({"/d1": kafka(SOURCE, "--override", "log.dirs=/mnt/d1,/mnt/d2")}, None),
        ({}, "no broker runs: nobody holds .lock in its log directories"),
        ({"/d1": None}, "no broker runs: nobody holds .lock in its log directories"),
        (
            {"/d1": Holder(7, 1, (), {})},
            "process 7 holds .lock of its log directories, and its command line cannot be read: run the guard as the "
            "user of the broker, or as root",
        ),
        (
            {"/d1": Holder(7, 1, ("kjbod-keeper of the .lock files",), {})},
            "a kjbod agent holds .lock of its log directories (process 7): no Kafka broker runs",
        ),
        (
            {"/d1": Holder(7, 1, ("/usr/bin/python3", "x.py"), {})},
            "process 7 holds .lock of its log directories, and is no Kafka broker but python3",
        ),
        (
            {"/d1": kafka("/etc/other.properties", file="/etc/other.properties")},
            f"the broker (process 7) runs with /etc/other.properties, not with {SOURCE}",
        ),
        (
            {"/d1": kafka(SOURCE, "--override", "node.id=2")},
            "the broker (process 7) runs with --override node.id=2, which the file does not have",
        ),
        (
            {"/d1": OURS, "/d2": replace(OURS, pid=8)},
            "several processes hold .lock of its log directories: 7, 8",
        ),
    ],
)
def test_a_process_is_ours_when_it_is_a_kafka_of_this_file(
    holders: dict[str, Holder | None], reason: str | None
) -> None:
    assert why_not_ours(holders, SOURCE, PROPERTIES) == reason


def test_overrides_are_taken_as_kafka_takes_them() -> None:
    arguments = ["f", "--override", "a=b=c", "--override=d=e", "--override"]
    assert overrides(arguments) == {"a": "b=c", "d": "e"}
    assert name_of(OURS) == "kafka.Kafka"


# ---------------------------------------------------------------------------------------------------- the registration


def test_a_registration_agrees_with_what_is_here() -> None:
    assert why_not_registered(Observed(1), [D1], 0) is None  # nothing is known
    assert why_not_registered(of([registered(D1, D2)]), [D1, D2, D3], 0) is None
    assert why_not_registered(of([registered(D1, D2)]), [D1], 1) is None  # the other one may be on the disk not read
    missing = why_not_registered(of([registered(D1, D2)]), [D1], 0)
    assert missing == f"broker 1 has registered the directory {D2}, which is not here"
    assert why_not_registered(of([registered(D1, broker=2)]), [D1], 0) == "broker 1 is not registered in the cluster"


def test_an_agents_registration_is_no_brokers() -> None:
    agents = replace(registered(D1), incarnation_id=random_agent_incarnation(random.Random(1)))
    reason = why_not_registered(of([agents]), [D1], 0)
    assert reason == "broker 1 is registered by a kjbod agent, not by Kafka"


def test_what_is_remembered_is_outdated_where_the_broker_has_registered_another_directory_in_its_place() -> None:
    now, unread = of([registered(D1, D2)]), {"/d3": D3}
    assert outdated(now, unread, [D1], 0) == ["/d3"], "nobody has read D2, and it can be nowhere else"
    assert outdated(now, unread, [D1], 1) == [], "D2 may be the one that is not watched, and D3 offline"
    assert outdated(now, unread, [D1, D2], 0) == [], "D3 is offline"
    assert outdated(now, {"/d2": D2}, [D1], 0) == []
    assert outdated(now, {"/d2": D2, "/d3": D3}, [], 0) == ["/d3"]
    assert outdated(Observed(1), unread, [D1], 0) == []
