"""``kjbod format``. Names carry the rows of Kafka's own tests (FM-n, ST-n)."""

import base64
import hashlib
import hmac
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kjbod.errors import KjbodError
from kjbod.ids import Uuid, is_reserved
from kjbod.metadata import versions
from kjbod.metadata.checkpoint_files import read_checkpoint
from kjbod.metadata.records import FeatureLevelRecord, UserScramCredentialRecord
from kjbod.storage_tool import StorageToolError, parse_voters
from tests.storage_tool.rig import CLUSTER_ID, MakeNode, Node

VOTER = "3000@127.0.0.1:19093:JEXY6aqzQY-32P5TStzaFg"
NON_ROOT = 65534
RUNS = 8
SCRAM = "SCRAM-SHA-256=[name=alice,password=alice-secret]"
LOG = "__cluster_metadata-0"
FIRST = f"{0:020}-{0:010}.checkpoint"
LATEST = (
    "Bootstrap metadata: BootstrapMetadata(records=["
    "ApiMessageAndVersion(FeatureLevelRecord(name='metadata.version', featureLevel=30) at version 0), "
    "ApiMessageAndVersion(FeatureLevelRecord(name='eligible.leader.replicas.version', featureLevel=1) at version 0), "
    "ApiMessageAndVersion(FeatureLevelRecord(name='group.version', featureLevel=1) at version 0), "
    "ApiMessageAndVersion(FeatureLevelRecord(name='share.version', featureLevel=1) at version 0), "
    "ApiMessageAndVersion(FeatureLevelRecord(name='streams.version', featureLevel=1) at version 0), "
    "ApiMessageAndVersion(FeatureLevelRecord(name='transaction.version', featureLevel=2) at version 0)], "
    "metadataVersionLevel=30, source=format command)"
)


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def refused(node: Node, **options: Any) -> str:
    """The message of a format that must fail and leave everything as it was."""
    before = tree(node.root)
    with pytest.raises(KjbodError) as caught:
        node.format(**options)
    assert tree(node.root) == before
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def levels(checkpoint: Path) -> dict[str, int]:
    records = read_checkpoint(checkpoint).records
    return {record.name: record.feature_level for record in records if isinstance(record, FeatureLevelRecord)}


@contextmanager
def without_privileges(*owned: Path) -> Iterator[None]:
    """As another user; ``owned`` are given to that user first."""
    if os.geteuid() != 0:
        yield
        return
    for path in owned:
        os.chown(path, NON_ROOT, NON_ROOT)
    os.seteuid(NON_ROOT)
    try:
        yield
    finally:
        os.seteuid(0)


# What it makes


@pytest.mark.parametrize("count", [1, 2, 3])
def test_fm_1_all_directories_get_the_same_node_and_cluster_and_the_latest_features(
    broker: MakeNode, count: int
) -> None:
    names = tuple(f"d{number}" for number in range(count))
    node = broker(directories=names)
    node.format(release_version="4.3")
    for name in names:
        meta = node.meta(name)
        assert (meta["node.id"], meta["cluster.id"], meta["version"]) == ("1", CLUSTER_ID, "1")
        assert levels(node.root / name / "bootstrap.checkpoint")["metadata.version"] == 30


def test_fm_6_every_directory_gets_an_id_of_its_own(broker: MakeNode) -> None:
    node = broker()
    node.format()
    ids = [Uuid.parse(node.meta(name)["directory.id"]) for name in ("d1", "d2", "d3")]
    assert len(set(ids)) == 3
    assert not any(map(is_reserved, ids))


def test_st_5_the_first_directory_is_the_metadata_directory_and_the_output_is_kafkas(broker: MakeNode) -> None:
    node = broker()
    d1, d2, d3 = node.directories
    assert node.format(release_version="4.3") == [
        LATEST,
        f"Formatting metadata directory {d1} with metadata.version 4.3-IV0.",
        f"Formatting data directory {d2} with metadata.version 4.3-IV0.",
        f"Formatting data directory {d3} with metadata.version 4.3-IV0.",
    ]
    assert list(tree(d1)) == ["bootstrap.checkpoint", "meta.properties"]


RELEASES = ("3.3", "3.4", "3.5", "3.6", "3.7", "3.8", "3.9", "4.0", "4.1", "4.2", "4.3", "4.4", "3.9.2", "4.4.0")


def test_a_broker_of_any_version_starts_on_directories_for_which_no_release_was_asked(broker: MakeNode) -> None:
    """It has no use for a bootstrap checkpoint, and does not start where that has a level that it does not know."""
    node = broker()
    d1, d2, d3 = node.directories
    assert node.format() == [
        f"Formatting metadata directory {d1}.",
        f"Formatting data directory {d2}.",
        f"Formatting data directory {d3}.",
    ]
    assert all(list(tree(each)) == ["meta.properties"] for each in (d1, d2, d3))


@pytest.mark.parametrize("release", RELEASES)
def test_each_release_since_3_3_can_be_asked_for(broker: MakeNode, release: str) -> None:
    node = broker()
    node.format(release_version=release)
    bootstrap = node.directories[0] / "bootstrap.checkpoint"
    if release.startswith("4.4"):
        assert not bootstrap.exists()  # no broker of 4.4 has a use for it, and Kafka's tool leaves none
    else:
        level = levels(bootstrap)["metadata.version"]
        assert versions.release_name(level).startswith(".".join(release.split(".")[:2]))
    assert node.info()[0] == 0


@pytest.mark.parametrize(
    ("flags", "kraft_version"),
    [
        ({"standalone": True}, 1),
        ({"no_initial_controllers": True}, 1),
        ({"standalone": True, "features": ["group.version=0"]}, 1),
        ({"standalone": True, "release_version": "4.4-IV0"}, 1),
        ({}, 0),
    ],
)
def test_a_controller_of_4_4_gets_the_first_records_in_its_first_snapshot(
    controller: MakeNode, flags: dict[str, Any], kraft_version: int
) -> None:
    more = () if flags else ("controller.quorum.voters=3000@127.0.0.1:19093",)
    node = controller(*more, directories=("meta", "data"))
    node.format(**flags)
    meta, data = node.directories
    assert list(tree(data)) == ["meta.properties"]
    assert sorted(tree(meta)) == [f"{LOG}/{FIRST}", "meta.properties"]
    found = read_checkpoint(meta / LOG / FIRST)
    wanted = 31 if "release_version" in flags else versions.LATEST
    assert levels(meta / LOG / FIRST)["metadata.version"] == wanted
    assert (found.kraft_version, found.voters is not None) == (kraft_version, bool(flags.get("standalone")))


@pytest.mark.parametrize("release", ["3.3", "3.9", "4.2", "4.3"])
def test_a_controller_of_an_older_release_gets_a_bootstrap_checkpoint_in_each_directory(
    controller: MakeNode, release: str
) -> None:
    node = controller(directories=("meta", "data"))
    node.format(standalone=True, release_version=release)
    meta, data = node.directories
    assert levels(meta / "bootstrap.checkpoint") == levels(data / "bootstrap.checkpoint")
    assert not read_checkpoint(meta / LOG / FIRST).records


def test_a_missing_directory_is_made_with_its_parents(broker: MakeNode) -> None:
    node = broker(directories=("a/b/c",))
    node.format()
    assert node.meta("a/b/c")["node.id"] == "1"


def test_a_metadata_directory_of_its_own_is_formatted_too(broker: MakeNode, tmp_path: Path) -> None:
    node = broker(f"metadata.log.dir={tmp_path}/broker/m", directories=("d1",))
    assert [line.split(" with ")[0] for line in node.format(release_version="4.3")[1:]] == [
        f"Formatting data directory {tmp_path}/broker/d1",
        f"Formatting metadata directory {tmp_path}/broker/m",
    ]


def test_the_cluster_id_is_free_text(broker: MakeNode) -> None:
    node = broker()
    node.format("free text: é")
    assert node.info()[1][5].startswith("Found metadata: {cluster.id=free text: é, ")


# Already formatted, half formatted, broken


def test_fm_2_st_8_formatted_directories_are_refused_and_the_first_is_named(broker: MakeNode) -> None:
    node = broker()
    node.format()
    assert refused(node) == (
        f"Log directory {node.directories[0]} is already formatted. "
        "Use --ignore-formatted to ignore this directory and format the others."
    )


def test_fm_2_one_formatted_directory_among_others_is_refused(broker: MakeNode) -> None:
    broker(directories=("d2",)).format()
    assert refused(broker()).startswith(f"Log directory {broker().directories[1]} is already formatted.")


def test_fm_3_formatting_again_with_ignore_formatted_changes_nothing(broker: MakeNode) -> None:
    node = broker()
    node.format()
    before = tree(node.root)
    assert node.format(ignore_formatted=True) == ["All of the log directories are already formatted."]
    assert tree(node.root) == before


def test_fm_4_only_the_missing_directory_is_formatted_and_it_is_a_data_directory(broker: MakeNode) -> None:
    broker(directories=("d1", "d3")).format()
    node = broker()
    before = tree(node.directories[0])
    assert node.format(ignore_formatted=True, release_version="4.3") == [
        LATEST,
        f"Formatting data directory {node.directories[1]} with metadata.version 4.3-IV0.",
    ]
    assert tree(node.directories[0]) == before


def test_with_ignore_formatted_a_formatted_directory_without_an_id_gets_one_as_the_kip_says(broker: MakeNode) -> None:
    node = broker()
    node.format()
    path = node.directories[2] / "meta.properties"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if "directory.id" not in line))
    lines = node.format(ignore_formatted=True, seed=7)
    assert lines == [
        f"Adding directory.id {node.meta('d3')['directory.id']} to {path}.",
        "All of the log directories are already formatted.",
    ]
    assert node.meta("d3")["cluster.id"] == CLUSTER_ID
    assert node.info()[0] == 0


def test_without_ignore_formatted_no_id_is_added(broker: MakeNode) -> None:
    node = broker(directories=("d1",))
    (node.root / "d1").mkdir()
    (node.root / "d1" / "meta.properties").write_text(f"version=1\nnode.id=1\ncluster.id={CLUSTER_ID}\n")
    refused(node)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("cluster.id=x", f"Invalid cluster.id in: {{d2}}/meta.properties. Expected {CLUSTER_ID}, but read x"),
        ("node.id=2", "Stored node id 2 doesn't match previous node id 1 in {d2}/meta.properties."),
        ("directory.id=AAAAAAAAAAAAAAAAAAAAAQ", "Invalid reserved directory ID AAAAAAAAAAAAAAAAAAAAAQ found in {d2}"),
    ],
)
def test_directories_of_another_node_or_cluster_are_refused(broker: MakeNode, change: str, message: str) -> None:
    node = broker()
    node.format()
    path = node.directories[1] / "meta.properties"
    path.write_text(path.read_text() + change + "\n")
    assert refused(node, ignore_formatted=True).startswith(message.format(d2=node.directories[1]))


def test_another_cluster_id_than_asked_for_is_refused(broker: MakeNode) -> None:
    node = broker()
    node.format()
    assert refused(node, cluster_id="x", ignore_formatted=True) == (
        f"Invalid cluster.id in: {node.directories[0]}/meta.properties. Expected x, but read {CLUSTER_ID}"
    )


def test_a_duplicated_directory_id_is_refused(broker: MakeNode) -> None:
    node = broker()
    node.format()
    first, second = (directory / "meta.properties" for directory in node.directories[:2])
    second.write_bytes(first.read_bytes())
    assert "Duplicate directory ID" in refused(node, ignore_formatted=True)


def test_st_6_a_directory_that_is_a_file_is_left_out(broker: MakeNode) -> None:
    node = broker()
    node.directories[1].write_text("")
    assert node.format(release_version="4.3") == [
        f"I/O error trying to read log directory {node.directories[1]}. Ignoring...",
        LATEST,
        f"Formatting metadata directory {node.directories[0]} with metadata.version 4.3-IV0.",
        f"Formatting data directory {node.directories[2]} with metadata.version 4.3-IV0.",
    ]
    assert node.warnings == [f"{node.directories[1]}/meta.properties: Not a directory"]


def test_st_7_no_directory_that_can_be_used_is_an_error(broker: MakeNode) -> None:
    node = broker()
    for directory in node.directories:
        directory.write_text("")
    assert refused(node) == "No available log directories to format."


def test_a_file_that_cannot_be_understood_is_left_alone(broker: MakeNode) -> None:
    node = broker()
    node.format()
    path = node.directories[1] / "meta.properties"
    path.write_text("version=2\n")
    assert node.format(ignore_formatted=True) == [
        f"I/O error trying to read log directory {node.directories[1]}. Ignoring...",
        "All of the log directories are already formatted.",
    ]
    assert path.read_text() == "version=2\n"


def test_fm_5_a_directory_that_cannot_be_written_is_one_line() -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own directories are closed to other users
        root = Path(name)
        root.chmod(0o755)
        node = Node(root / "broker", "broker", ("d1",))
        node.directories[0].mkdir(0o555)
        with without_privileges(node.directories[0]), pytest.raises(KjbodError) as caught:
            node.format()
        assert str(caught.value).startswith(f"Error while writing meta.properties file {node.directories[0]}: ")
        assert "Permission denied" in str(caught.value)
        assert tree(node.directories[0]) == {}


def _dangling(path: Path) -> None:
    path.symlink_to("/mnt/not-mounted/kafka")


def _below_a_dangling_link(path: Path) -> None:
    path.parent.rmdir()
    path.parent.symlink_to("away")


def _relative(path: Path) -> None:
    path.symlink_to("../nowhere")


def _further_above(path: Path) -> None:
    path.parent.rmdir()
    path.parent.parent.joinpath("gone").symlink_to("/mnt/not-mounted")
    path.parent.symlink_to("gone/kafka")


def _chain(path: Path) -> None:
    path.symlink_to(path.with_name("second"))
    path.with_name("second").symlink_to("nowhere")


@pytest.mark.parametrize("make", [_dangling, _below_a_dangling_link, _relative, _further_above, _chain])
def test_a_link_that_leads_nowhere_is_named_and_nothing_is_formatted(
    broker: MakeNode, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path, well = tmp_path / "disk" / "kafka", tmp_path / "well"
    path.parent.mkdir()
    make(path)
    node = broker(f"log.dirs={well},{path}")
    with pytest.raises(KjbodError) as caught:
        node.format()
    said = str(caught.value)
    assert "leads nowhere: mount the disk" in said
    assert "Nothing was formatted" in said
    assert not well.exists()


def test_a_directory_that_cannot_be_made_is_one_line(broker: MakeNode) -> None:
    node = broker("log.dirs=/proc/kjbod-none")
    with pytest.raises(KjbodError) as caught:
        node.format()
    assert str(caught.value) == (
        "Error while writing meta.properties file /proc/kjbod-none: No such file or directory (/proc/kjbod-none): "
        "make it writable for this user, then format again with --ignore-formatted"
    )


# Quorums


def test_st_9_a_controller_must_say_which_quorum(controller: MakeNode) -> None:
    assert refused(controller()) == (
        "Because controller.quorum.voters is not set on this controller, you must specify one of the following: "
        "--standalone, --initial-controllers, or --no-initial-controllers."
    )


def test_st_9_a_controller_of_a_static_quorum_needs_no_flag(controller: MakeNode) -> None:
    node = controller("controller.quorum.voters=3000@127.0.0.1:19093")
    assert node.format()[1] == f"Formatting metadata directory {node.directories[0]} with metadata.version 4.4-IV2."


def test_st_9_a_static_quorum_and_initial_voters_contradict_each_other(controller: MakeNode) -> None:
    node = controller("controller.quorum.voters=3000@127.0.0.1:19093")
    for options in ({"standalone": True}, {"initial_controllers": VOTER}):
        assert refused(node, **options).startswith("You cannot specify controller.quorum.voters and format the node")


def test_st_9_standalone_makes_a_voter_of_this_controller(controller: MakeNode) -> None:
    node = controller(directories=("meta", "data"))
    meta, data = node.directories
    assert node.format(standalone=True)[1:] == [
        f"Formatting data directory {data} with metadata.version 4.4-IV2.",
        f"Formatting dynamic metadata voter directory {meta} with metadata.version 4.4-IV2.",
    ]
    path = meta / "__cluster_metadata-0" / "00000000000000000000-0000000000.checkpoint"
    checkpoint = read_checkpoint(path)
    assert checkpoint.kraft_version == 1
    assert checkpoint.voters is not None
    (voter,) = checkpoint.voters.voters
    assert (voter.voter_id, str(voter.voter_directory_id)) == (3000, node.meta("meta")["directory.id"])
    (endpoint,) = voter.endpoints
    assert (endpoint.name, endpoint.host, endpoint.port) == ("CONTROLLER", "127.0.0.1", 19093)
    assert path.stat().st_mode & 0o777 == 0o400
    assert not (data / "__cluster_metadata-0").exists()


def test_st_9_a_standalone_voter_without_an_address_is_localhost_as_in_kafka(controller: MakeNode) -> None:
    node = controller("listeners=CONTROLLER://:19093")
    node.format(standalone=True)
    path = node.directories[0] / "__cluster_metadata-0" / "00000000000000000000-0000000000.checkpoint"
    voters = read_checkpoint(path).voters
    assert voters is not None
    assert voters.voters[0].endpoints[0].host == "localhost"


def test_st_9_standalone_is_for_controllers(broker: MakeNode) -> None:
    assert refused(broker(), standalone=True) == "You can only use --standalone on a controller."


def test_st_9_no_initial_controllers_makes_no_voters(controller: MakeNode) -> None:
    node = controller()
    assert node.format(no_initial_controllers=True)[1] == (
        f"Formatting metadata directory {node.directories[0]} with metadata.version 4.4-IV2."
    )
    assert read_checkpoint(node.directories[0] / LOG / FIRST).voters is None


def test_fm_7_a_named_voter_gets_the_id_that_was_named_and_other_directories_another(controller: MakeNode) -> None:
    node = controller(directories=("meta", "data"))
    lines = node.format(initial_controllers=f"{VOTER},3001@h:1:MvDxzVmcRsaTz33bUuRU6A")
    assert [line.split(" directory ")[0] for line in lines[1:]] == [
        "Formatting data",
        "Formatting dynamic metadata voter",
    ]
    assert node.meta("meta")["directory.id"] == "JEXY6aqzQY-32P5TStzaFg"
    assert node.meta("data")["directory.id"] not in ("JEXY6aqzQY-32P5TStzaFg", "MvDxzVmcRsaTz33bUuRU6A")


def test_a_node_that_is_not_among_the_voters_gets_a_dynamic_metadata_directory(controller: MakeNode) -> None:
    node = controller()
    lines = node.format(initial_controllers="3001@h:1:MvDxzVmcRsaTz33bUuRU6A")
    assert lines[1].startswith("Formatting dynamic metadata directory ")
    assert node.meta("meta")["directory.id"] != "MvDxzVmcRsaTz33bUuRU6A"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bogus", "No @ found in dynamic voter string."),
        ("@h:1:x", "Invalid @ at beginning of dynamic voter string."),
        ("a@h:1:x", "Failed to parse node id in dynamic voter string."),
        ("-1@h:1:x", "Invalid negative node id -1 in dynamic voter string."),
        ("1@", "No hostname found after node id."),
        ("1@[::1:1:x", "Hostname began with left bracket, but no right bracket was found."),
        ("1@[::1]x", "Port section must start with a colon."),
        ("1@h", "No colon following hostname could be found."),
        ("1@h:1", "No colon following port could be found."),
        ("1@h:p:x", "Failed to parse port in dynamic voter string."),
        ("1@h:65536:x", "Invalid port 65536 in dynamic voter string."),
        (
            "1@h:1:bad",
            "Failed to parse directory ID in dynamic voter string. Input string `bad` decoded as 2 bytes, "
            "which is not equal to the expected 16 bytes of a base64-encoded UUID",
        ),
        (
            "1@h:1:AAAAAAAAAAAAAAAAAAAAAQ",
            "Invalid reserved directory ID AAAAAAAAAAAAAAAAAAAAAQ in dynamic voter string.",
        ),
        (f"{VOTER},{VOTER}", "Node id 3000 was specified more than once."),
        (",", "No voters given."),
    ],
)
def test_voters_that_cannot_be_understood_are_refused_in_kafkas_words(
    controller: MakeNode, text: str, message: str
) -> None:
    assert refused(controller(), initial_controllers=text) == message


def test_voters_may_have_ipv6_addresses() -> None:
    (voter,) = parse_voters("1@[::1]:9093:JEXY6aqzQY-32P5TStzaFg,").values()
    assert (voter.host, voter.port) == ("::1", 9093)


# Features


@pytest.mark.parametrize("release", ["3.9-IV0", "3.9", "3.9.1"])
def test_fm_9_an_older_release_has_its_own_features(broker: MakeNode, release: str) -> None:
    node = broker()
    assert node.format(release_version=release)[1].endswith(" with metadata.version 3.9-IV0.")
    assert levels(node.directories[0] / "bootstrap.checkpoint") == {"metadata.version": 21}


@pytest.mark.parametrize("release", ["3.2", "3.3-IV2", "4.5-IV0", "x", ""])
def test_fm_9_an_unknown_or_unstable_release_is_refused(broker: MakeNode, release: str) -> None:
    assert refused(broker(), release_version=release).startswith(
        f"Unknown metadata.version '{release}'. Supported metadata.version are: 3.3-IV3, 3.4-IV0, "
    )


def test_fm_10_features_start_at_the_level_that_was_asked_for(controller: MakeNode) -> None:
    node = controller()
    node.format(standalone=True, features=["group.version=0", " transaction.version = 1"])
    assert levels(node.directories[0] / LOG / FIRST) == {
        "metadata.version": 33,
        "eligible.leader.replicas.version": 1,
        "share.version": 2,
        "streams.version": 1,
        "transaction.version": 1,
    }


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (
            ["nope=1"],
            "Unsupported feature: nope. Supported features are: eligible.leader.replicas.version, group.version, "
            "kraft.version, share.version, streams.version, transaction.version",
        ),
        (["group.version=9"], "No feature:group.version with feature level 9"),
        (["group.version=-1"], "No feature:group.version with feature level -1"),
        (["group.version"], "Can't parse feature=level string group.version: equals sign not found."),
        (["group.version=a"], "Can't parse feature=level string group.version=a: unable to parse a as a short."),
        (
            ["metadata.version=99"],
            "No MetadataVersion with feature level 99. Valid feature levels are from 7 to 33.",
        ),
        (
            ["metadata.version=20", "eligible.leader.replicas.version=1"],
            "eligible.leader.replicas.version could not be set to 1 because it depends on metadata.version level 23",
        ),
        (
            ["kraft.version=0"],
            "Cannot set kraft.version to 0 if controller.quorum.voters is empty and one of the flags --standalone, "
            "--initial-controllers, or --no-initial-controllers is used. For dynamic controllers support, "
            "try removing the --feature flag for kraft.version.",
        ),
    ],
)
def test_fm_10_features_that_cannot_be_are_refused(broker: MakeNode, features: list[str], message: str) -> None:
    assert refused(broker(), features=features) == message


def test_fm_8_a_static_quorum_has_no_newer_kraft_version(controller: MakeNode) -> None:
    node = controller("controller.quorum.voters=3000@127.0.0.1:19093")
    assert refused(node, features=["kraft.version=1"]).startswith(
        "Cannot set kraft.version to 1 unless controller.quorum.voters is empty"
    )


def test_a_release_and_a_metadata_version_are_one_too_many(broker: MakeNode) -> None:
    assert refused(broker(), release_version="3.9", features=["metadata.version=20"]) == (
        "Use --release-version instead of --feature metadata.version=X to avoid ambiguity."
    )


# SCRAM


def scram_records(node: Node) -> list[UserScramCredentialRecord]:
    records = read_checkpoint(node.directories[0] / LOG / FIRST).records
    return [record for record in records if isinstance(record, UserScramCredentialRecord)]


def test_fm_10_a_scram_credential_is_the_one_of_rfc_5802(controller: MakeNode) -> None:
    node = controller()
    salt = base64.b64encode(b"salt" * 4).decode()
    lines = node.format(
        standalone=True, scram=[f'SCRAM-SHA-256=[name=alice,password=alice-secret,salt="{salt}",iterations=8192]']
    )
    (record,) = scram_records(node)
    salted = hashlib.pbkdf2_hmac("sha256", b"alice-secret", b"salt" * 4, 8192)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    assert (record.name, record.mechanism, record.iterations, record.salt) == ("alice", 1, 8192, b"salt" * 4)
    assert record.stored_key == hashlib.sha256(client_key).digest()
    assert record.server_key == hmac.digest(salted, b"Server Key", "sha256")
    assert "UserScramCredentialRecord(name='alice', mechanism=1, [hidden])" in lines[0]


def test_fm_10_a_password_salted_elsewhere_is_taken_as_it_is(controller: MakeNode) -> None:
    node = controller()
    node.format(standalone=True, scram=['SCRAM-SHA-512=[name=bob,salt="N3E=",saltedpassword="YCE="]'])
    (record,) = scram_records(node)
    assert record.server_key == hmac.digest(b"`!", b"Server Key", "sha512")
    assert (record.mechanism, record.iterations, record.salt) == (2, 4096, b"7q")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("secret", "Failed to find equals sign in SCRAM argument"),
        ("SCRAM-MD5=[name=a]", "The add-scram mechanism SCRAM-MD5 is not supported."),
        ("SCRAM-SHA-256=name=a", "Expected configuration string to start with ["),
        ("SCRAM-SHA-256=[name=a", "Expected configuration string to end with ]"),
        ("SCRAM-SHA-256=[name]", "No equals sign found in SCRAM component"),
        ("SCRAM-SHA-256=[password=x]", "You must supply 'name' to add-scram"),
        ("SCRAM-SHA-256=[name=a]", "You must supply one of 'password' or 'saltedpassword' to add-scram"),
        ("SCRAM-SHA-256=[name=a,saltedpassword=YCE=]", "You must supply 'salt' with 'saltedpassword' to add-scram"),
        ("SCRAM-SHA-256=[name=a,password=x,salt=?]", "Failed to decode given salt"),
        ("SCRAM-SHA-256=[name=a,saltedpassword=?,salt=YCE=]", "Failed to decode given saltedPassword"),
        ("SCRAM-SHA-256=[name=a,password=x,iterations=z]", "Failed to parse iterations count: z"),
        (
            "SCRAM-SHA-256=[name=a,password=x,iterations=4095]",
            "The 'iterations' value must be >= 4096 for add-scram using SCRAM_SHA_256",
        ),
        (
            "SCRAM-SHA-256=[name=a,password=x,iterations=16385]",
            "The 'iterations' value must be <= 16384 for add-scram using SCRAM_SHA_256",
        ),
        ("SCRAM-SHA-256=[name=a,password=x,colour=red]", "Unknown SCRAM configurations: colour"),
    ],
)
def test_a_scram_argument_that_cannot_be_used_is_refused_without_showing_secrets(
    broker: MakeNode, argument: str, message: str
) -> None:
    assert refused(broker(), scram=[argument]) == message


def test_fm_10_scram_needs_a_release_that_has_it(broker: MakeNode) -> None:
    scram = ["SCRAM-SHA-256=[name=a,password=x]"]
    assert refused(broker(), scram=scram, release_version="3.4") == (
        "SCRAM is only supported in metadata.version 3.5-IV2 or later."
    )


# ---------------------------------------------------------------- several at once, and secrets


@pytest.mark.parametrize("nested", [False, True], ids=["there", "to be made"])
def test_of_several_runs_at_once_one_formats_and_the_others_say_that_it_is_done(tmp_path: Path, nested: bool) -> None:
    disks = tmp_path / "disks"
    disks.mkdir()
    names = ("d1", "d2") if nested else ("../disks/d1", "../disks/d2")
    nodes = [Node(disks if nested else tmp_path / f"n{each}", "broker", names) for each in range(RUNS)]
    if not nested:
        for name in ("d1", "d2"):
            (disks / name).mkdir()
    start = threading.Barrier(RUNS)

    def run(each: int) -> str | None:
        start.wait()
        try:
            nodes[each].format(seed=each)
        except KjbodError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(RUNS) as threads:
        said = list(threads.map(run, range(RUNS)))
    assert said.count(None) == 1
    assert all(text is None or "is already formatted" in text for text in said)


def test_keys_of_users_are_in_a_file_that_only_its_user_reads(tmp_path: Path) -> None:
    plain = Node(tmp_path / "plain", "controller", ("d1",))
    plain.format(standalone=True, release_version="4.3")
    secret = Node(tmp_path / "secret", "controller", ("d1",))
    secret.format(standalone=True, scram=(SCRAM,), release_version="4.3")
    newer = Node(tmp_path / "newer", "controller", ("d1",))
    newer.format(standalone=True, scram=(SCRAM,))
    files = (*(each.root / "d1/bootstrap.checkpoint" for each in (plain, secret)), newer.root / "d1" / LOG / FIRST)
    assert [path.stat().st_mode & 0o777 for path in files] == [0o644, 0o600, 0o400]


def test_two_paths_of_the_same_directory_are_refused_and_nothing_is_formatted(tmp_path: Path) -> None:
    node = Node(tmp_path, "controller", ("d1",))
    (node.root / "d1").mkdir()
    (node.root / "link").symlink_to("d1")
    with node.path.open("a") as config:
        config.write(f"metadata.log.dir={node.root}/link\n")
    with pytest.raises(StorageToolError, match=f"{node.root}/d1 and {node.root}/link are the same directory"):
        node.format(standalone=True)
    assert not list((node.root / "d1").iterdir())


def test_a_metadata_directory_whose_disk_is_not_mounted_is_not_formatted_in_its_place(tmp_path: Path) -> None:
    node = Node(tmp_path, "controller", ("mnt",))
    (node.root / "mnt").mkdir()
    with node.path.open("a") as config:
        config.write(f"kjbod.state.dir={node.root}/state\n")
    memory = node.root / "state" / "known_directories.json"
    memory.parent.mkdir()
    one = {"directory_id": "AAAAAAAAAAAAAAAAAAAAAg", "mount_point": f"{node.root}/mnt"}
    memory.write_text(json.dumps({"version": 2, "node_id": 3000, "directories": {f"{node.root}/mnt": one}}))
    with pytest.raises(StorageToolError, match=f"mount its disk on {node.root}/mnt first") as refused:
        node.format(standalone=True)
    assert str(memory) in str(refused.value)
    assert not list((node.root / "mnt").iterdir())
    memory.write_text(memory.read_text().replace(f'"mount_point": "{node.root}/mnt"', '"mount_point": "/"'))
    assert node.format(standalone=True)
