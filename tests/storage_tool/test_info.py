"""``kjbod info``, ``version-mapping``, ``feature-dependencies``. Names carry the rows of Kafka's own tests (ST-n)."""

import os
import queue
from concurrent.futures import ThreadPoolExecutor

import pytest

from kjbod import storage_tool
from kjbod.storage_tool import StorageToolError, describe_directories, print_feature_dependencies, print_version_mapping
from tests.storage_tool.rig import CLUSTER_ID, MakeNode


def change(node_path: str, *lines: str) -> None:
    with open(node_path, "a") as file:
        file.writelines(f"{line}\n" for line in lines)


def test_formatted_directories_are_shown_with_what_they_say(broker: MakeNode) -> None:
    node = broker()
    node.format()
    directory_id = node.meta("d1")["directory.id"]
    assert node.info() == (
        0,
        [
            "Found log directories:",
            *(f"  {directory}" for directory in node.directories),
            "",
            f"Found metadata: {{cluster.id={CLUSTER_ID}, directory.id={directory_id}, node.id=1, version=1}}",
            "",
        ],
    )


def test_st_1_data_and_metadata_directories_are_shown_once_each_and_sorted(broker: MakeNode) -> None:
    node = broker("metadata.log.dir=/proc/kjbod-none")
    assert node.info()[1][1:5] == [
        "  /proc/kjbod-none does not exist",
        *(f"  {directory} does not exist" for directory in node.directories),
    ]


def test_st_2_an_empty_directory_is_a_problem(broker: MakeNode) -> None:
    node = broker(directories=("d1",))
    node.directories[0].mkdir()
    assert node.info() == (
        1,
        [
            "Found log directory:",
            f"  {node.directories[0]}",
            "",
            "Found problem:",
            f"  {node.directories[0]} is not formatted.",
            "",
        ],
    )


def test_st_3_a_missing_directory_and_a_file_are_problems(broker: MakeNode) -> None:
    node = broker(directories=("d1", "d2"))
    node.directories[1].write_text("")
    assert node.info() == (
        1,
        [
            "Found problems:",
            f"  {node.directories[0]} does not exist",
            f"  {node.directories[1]} is not a directory",
            "",
        ],
    )


def test_st_4_directories_of_a_zookeeper_broker_are_a_problem(broker: MakeNode) -> None:
    node = broker(directories=("d1",))
    node.directories[0].mkdir()
    change(f"{node.directories[0]}/meta.properties", "version=0", "broker.id=1", "cluster.id=c")
    code, lines = node.info()
    assert code == 1
    assert lines[3] == "Found metadata: {broker.id=1, cluster.id=c, version=0}"
    assert lines[6] == (
        "  The kafka configuration file appears to be for a cluster in KRaft mode, but the directories are formatted "
        "for legacy mode."
    )


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("cluster.id=x", "Mismatched cluster IDs between storage directories."),
        ("node.id=9", "Mismatched node IDs between storage directories."),
        (
            "version=2",
            "{d2}/meta.properties is damaged (Unknown meta.properties version number 2): restore the file from a "
            "backup; or move it away, then `kjbod format -c {source} -t CLUSTER_ID --ignore-formatted`: the directory "
            "gets a new id",
        ),
    ],
)
def test_directories_that_do_not_fit_together_are_a_problem(broker: MakeNode, line: str, problem: str) -> None:
    node = broker()
    node.format()
    change(f"{node.directories[1]}/meta.properties", line)
    code, lines = node.info()
    assert code == 1
    assert lines[-3:] == ["Found problem:", f"  {problem.format(d2=node.directories[1], source=node.path)}", ""]


def test_a_file_that_cannot_be_read_is_a_problem_not_a_crash(broker: MakeNode) -> None:
    node = broker(directories=("d1",))
    (node.directories[0] / "meta.properties").mkdir(parents=True)
    code, lines = node.info()
    assert code == 1
    assert lines[-2] == f"  Error loading {node.directories[0]}/meta.properties: Is a directory"


# Features


def mapping(release: str | None) -> list[str]:
    lines: list[str] = []
    print_version_mapping(release, lines.append)
    return lines


def dependencies(*features: str) -> list[str]:
    lines: list[str] = []
    print_feature_dependencies(features, lines.append)
    return lines


def test_st_10_the_features_of_the_latest_release() -> None:
    assert mapping(None) == [
        "metadata.version=33 (4.4-IV2)",
        "kraft.version=1",
        "transaction.version=2",
        "group.version=1",
        "eligible.leader.replicas.version=1",
        "share.version=2",
        "streams.version=1",
    ]


def test_st_10_the_features_of_an_older_release() -> None:
    assert mapping("3.9")[:4] == [
        "metadata.version=21 (3.9)",
        "kraft.version=1",
        "transaction.version=0",
        "group.version=0",
    ]


def test_st_10_an_unknown_release() -> None:
    with pytest.raises(
        StorageToolError, match=r"Unknown metadata\.version '9\.9'\. Supported metadata\.version are: 3\.3-IV3"
    ):
        mapping("9.9")


def test_st_10_dependencies() -> None:
    assert dependencies(
        "transaction.version=2", "metadata.version=20", "eligible.leader.replicas.version=1", "kraft.version = 1"
    ) == [
        "transaction.version=2 has no dependencies.",
        "metadata.version=20 (3.8-IV0) has no dependencies.",
        "eligible.leader.replicas.version=1 requires:",
        "    metadata.version=23 (4.0-IV1)",
        "kraft.version=1 has no dependencies.",
    ]


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        ("x=1", "Unknown feature: x"),
        ("group.version=7", "Feature level 7 is not supported for feature group.version"),
        ("metadata.version=99", "Unknown metadata.version 99"),
        ("group.version=a", "Invalid version format: a for feature group.version"),
        ("x", "Invalid feature format: x. Expected format: 'feature=version' (e.g. 'group.version=1')"),
    ],
)
def test_st_10_features_that_are_not(feature: str, message: str) -> None:
    with pytest.raises(StorageToolError) as caught:
        dependencies(feature)
    assert str(caught.value) == message


def test_a_directory_that_does_not_answer_is_named_while_it_is_waited_for(
    broker: MakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_tool, "SILENT_S", 0.05)
    node = broker()
    node.format()
    hanging = node.directories[1] / "meta.properties"
    content = hanging.read_bytes()
    hanging.unlink()
    os.mkfifo(hanging)  # whose open() waits for a writer
    said = queue.SimpleQueue[str]()
    with ThreadPoolExecutor(1) as pool:
        shown = pool.submit(describe_directories, node.config, lambda _line: None, said.put)
        while not said.get(timeout=30).startswith(f"{node.directories[1]} does not answer: its disk may hang"):
            pass  # another one, which was only slow
        hanging.write_bytes(content)
        assert shown.result(30) == 0
