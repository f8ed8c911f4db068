"""Directories of older releases and spoilt ``meta.properties``: one line for each case, the same in each command, with
a command that works."""

import random
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from kjbod.cli import main as cli
from kjbod.errors import StorageError
from kjbod.ids import Uuid
from kjbod.meta_properties import format_command, trouble_with
from kjbod_controller_stub.log.controller_directory import open_directory
from kjbod_guard.binding import heads
from kjbod_host.directories.start_up_rules import examine
from kjbod_host.storage.api import LoadedDirectory, MountIdentity
from tests.storage_tool.rig import CLUSTER_ID, MakeNode, Node

ID = Uuid.of(5, 5)
STATIC = "controller.quorum.voters=3000@127.0.0.1:19093"
OWNER = f"node.id=3000\ncluster.id={CLUSTER_ID}\n"
CASES = {
    "no directory.id": (f"version=1\n{OWNER}", "has no directory.id: it was formatted before Kafka 3.7"),
    "no cluster.id": (f"version=1\nnode.id=3000\ndirectory.id={ID}\n", "has no cluster.id: add the line: `printf"),
    "no node.id": (f"version=1\ncluster.id={CLUSTER_ID}\n", "has no node.id: add the line: `printf"),
    "no end of line": ("version=1\nnode.id=3000", "has no cluster.id: add the line: `printf"),
    "ZooKeeper": (
        "version=0\nbroker.id=3000\n",
        "is that of a Kafka in ZooKeeper mode (version 0) and has no cluster.id",
    ),
    "ZooKeeper, no version": (f"cluster.id={CLUSTER_ID}\n", "ZooKeeper mode (version 0) and has no broker.id"),
    "empty": ("", "meta.properties is empty: restore"),
    "blank": ("\n \n", "meta.properties is empty"),
    "NUL": ("\0" * 90, "meta.properties is empty (NUL bytes only): restore"),
    "torn": (
        f"#\n#Mon\nversion=1\n{OWNER}directory.id=MkU3",
        "meta.properties is damaged (Unable to read directory.id",
    ),
    "another version": (f"version=2\n{OWNER}", "is damaged (Unknown meta.properties version number 2)"),
    "no text": ("\x80\x81\x05=\n", "is damaged (it has no node.id and no cluster.id)"),
    "an escape": ("version=1\nnode.id=\\u12\n", "is damaged (Malformed \\uxxxx encoding"),
    "no number": (f"version=1\nnode.id=x\ncluster.id={CLUSTER_ID}\n", "is damaged (Unable to read node.id as"),
}


def of(controller: MakeNode, text: str, *changes: str) -> Node:
    node = controller(*changes)
    node.directories[0].mkdir(parents=True)
    (node.directories[0] / "meta.properties").write_bytes(text.encode("latin-1"))
    return node


def loaded(path: Path) -> LoadedDirectory:
    identity = MountIdentity(1, 1, "8:1", 2, "0", None)
    content = (path / "meta.properties").read_bytes()
    return LoadedDirectory(str(path), str(path), content, None, (), (), False, identity, 0, 0, False, None)


@pytest.mark.parametrize("case", CASES)
def test_each_command_has_the_same_line(controller: MakeNode, case: str) -> None:
    text, words = CASES[case]
    node = of(controller, text, STATIC)
    path = str(node.directories[0])
    command = format_command(str(node.path), dynamic_controller=False)
    line = trouble_with(text.encode("latin-1"), path, command)
    assert line is not None
    assert words in line
    assert line.count(path) <= 2

    if case == "no directory.id":
        open_directory(node.config).release()
    else:
        with pytest.raises(StorageError) as refused:
            open_directory(node.config)
        assert str(refused.value) == line
    assert heads(3000, {path: loaded(node.directories[0])}, command=command).foreign == {path: line}
    code, out = node.info()
    if case == "no directory.id":
        assert (code, node.warnings) == (0, [line]), "who starts there gives it one"
    else:
        assert code == 1
        assert f"  {line}" in out
    one = {path: loaded(node.directories[0])}

    def start() -> object:
        return examine(
            node_id=3000,
            log_dirs=[path],
            metadata_log_dir=path,
            loads=one,
            remembered={},
            rng=random.Random(1),
            command=command,
        )

    if case == "no directory.id":
        start()
    else:
        with pytest.raises(StorageError, match=re.escape(line)):
            start()


@pytest.mark.parametrize(("change", "flag"), [(STATIC, False), ("log.segment.delete.delay.ms=1", True)])
def test_the_command_for_a_directory_without_an_id_works(controller: MakeNode, change: str, flag: bool) -> None:
    node = of(controller, CASES["no directory.id"][0], change)
    node.info()
    command = node.warnings[0].split("`")[1]
    assert command.startswith("kjbod format ")
    assert ("--no-initial-controllers" in command) == flag
    assert cli.run(shlex.split(command)[1:]) == 0
    open_directory(node.config).release()


@pytest.mark.parametrize("case", ["empty", "NUL", "torn"])
def test_the_command_for_a_file_that_was_moved_away_works(controller: MakeNode, case: str) -> None:
    node = of(controller, CASES[case][0], STATIC)
    with pytest.raises(StorageError) as refused:
        open_directory(node.config)
    (node.directories[0] / "meta.properties").rename(node.root / "away")
    command = str(refused.value).split("`")[1].replace("CLUSTER_ID", CLUSTER_ID)
    assert cli.run(shlex.split(command)[1:]) == 0
    open_directory(node.config).release()


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("case", "name", "value"), [("no end of line", "CLUSTER_ID", CLUSTER_ID), ("no node.id", "NODE_ID", "3000")]
)
def test_the_command_for_a_missing_line_works(controller: MakeNode, case: str, name: str, value: str) -> None:
    node = of(controller, CASES[case][0], STATIC)
    with pytest.raises(StorageError) as refused:
        open_directory(node.config)
    command = str(refused.value).split("`")[1].replace(name, value)
    subprocess.run(["sh", "-c", command], check=True, timeout=30)
    open_directory(node.config).release()


def test_a_directory_of_a_broker_that_was_migrated_is_used_as_by_kafka(controller: MakeNode) -> None:
    text = f"version=0\nbroker.id=3000\ncluster.id={CLUSTER_ID}\ndirectory.id={ID}\n"
    node = of(controller, text, STATIC)
    open_directory(node.config).release()
    assert heads(3000, {"/x": loaded(node.directories[0])}).foreign == {}


@pytest.mark.parametrize(("change", "flag"), [(STATIC, ""), ("log.segment.delete.delay.ms=1", " --standalone")])
def test_a_new_controller_is_told_a_command_that_works(controller: MakeNode, change: str, flag: str) -> None:
    node = controller(change)
    with pytest.raises(StorageError, match="is not formatted") as refused:
        open_directory(node.config)
    command = str(refused.value).split("`")[1]
    assert command.endswith(f"CLUSTER_ID{flag}")
    assert cli.run(shlex.split(command.replace("CLUSTER_ID", CLUSTER_ID))[1:]) == 0
    open_directory(node.config).release()
