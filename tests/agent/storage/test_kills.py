"""A worker is killed at system calls of every operation that changes a log directory: at all of them in the deep form,
else at some, drawn."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kjbod_host.storage.checkpoints import HIGH_WATERMARK
from tests.agent.storage.here import TOPIC_ID, Here
from tests.agent.storage.killing import calls_of, killed_at
from tests.depth import Points, sweep

FUTURE = f"t-0.{'a' * 32}-future"
STRAY = f"t-0.{'b' * 32}-stray"
DELETED = f"t-0.{'c' * 32}-delete"
METADATA = f"version: 0\ntopic_id: {TOPIC_ID}"


def replica(root: Path, name: str) -> None:
    (root / name).mkdir()
    (root / name / "partition.metadata").write_text(METADATA)
    for base in range(0, 300, 100):
        (root / name / f"{base:020d}.log").write_bytes(b"data" * base)


def nothing(root: Path) -> None:
    pass


def checkpoint(root: Path) -> None:
    (root / HIGH_WATERMARK).write_text("0\n2\nt 0 5\nu 0 1\n")


@dataclass(frozen=True)
class Operation:
    """What is asked, of a directory with what in it."""

    title: str
    name: str
    request: dict[str, Any]
    prepare: Callable[[Path], object]


OPERATIONS = [
    Operation("a replica is made", "create_replica", {"name": "t-0", "topic_id": TOPIC_ID}, nothing),
    Operation("a future replica is made", "create_future", {"name": FUTURE, "topic_id": TOPIC_ID}, nothing),
    Operation(
        "a replica becomes stray",
        "rename_replica",
        {"name": "t-0", "new_name": STRAY},
        lambda root: replica(root, "t-0"),
    ),
    Operation(
        "a future replica is promoted",
        "rename_replica",
        {"name": FUTURE, "new_name": "t-0"},
        lambda root: replica(root, FUTURE),
    ),
    Operation(
        "a deleted replica goes",
        "delete_replica",
        {"name": DELETED, "topic_id": TOPIC_ID},
        lambda root: replica(root, DELETED),
    ),
    Operation(
        "a stray replica goes",
        "delete_replica",
        {"name": STRAY, "topic_id": TOPIC_ID},
        lambda root: replica(root, STRAY),
    ),
    Operation(
        "a future replica goes",
        "delete_replica",
        {"name": FUTURE, "topic_id": TOPIC_ID},
        lambda root: replica(root, FUTURE),
    ),
    Operation(
        "a checkpoint changes",
        "change_checkpoint",
        {"name": HIGH_WATERMARK, "changes": [["t", 0, 9], ["u", 0, None]]},
        checkpoint,
    ),
    Operation("a checkpoint is made", "change_checkpoint", {"name": HIGH_WATERMARK, "changes": [["t", 0, 9]]}, nothing),
    Operation("a clean shutdown", "write_clean_shutdown", {"epoch": 17}, nothing),
    Operation(
        "meta.properties",
        "write_meta_properties",
        {"content": "version=1\ndirectory.id=9bFlIkpYt5HfavHYMD5hzQ\n"},
        nothing,
    ),
]


def state(root: Path) -> dict[str, object]:
    """What the next agent loads: not what it takes for deleted or for the rest of an interrupted replacement."""
    with Here(root) as here:
        loaded = here.ask("load")["ok"]
        kept = [name for name, parsed in loaded["names"] if parsed is not None and parsed[2] != "delete"]
        assert all(parsed is not None for _, parsed in loaded["names"]), "a name that Kafka refuses to start with"
        ids = [topic_id for topic_id, _ in here.ask("topic_ids", names=kept)["ok"]]
        checkpoints = here.ask("read_checkpoint", name=HIGH_WATERMARK)["ok"]
        files = {
            name: {file.name: file.read_bytes() for file in (root / name).iterdir() if file.suffix != ".tmp"}
            for name in kept
        }
    return {
        "meta": loaded["meta"],
        "clean": loaded["clean"],
        "ids": dict(zip(kept, ids, strict=True)),
        "files": files,
        "checkpoints": checkpoints,
    }


def ask(root: Path, operation: Operation) -> list[dict[str, Any]]:
    """Until it says that it is done."""
    with Here(root) as here:
        answers = [here.ask(operation.name, **operation.request)]
        while answers[-1].get("ok") is True:
            answers.append(here.ask(operation.name, **operation.request))
    return answers


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("points", sweep(ci=30))
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.title)
def test_a_kill_at_any_system_call_leaves_a_directory_as_it_was_or_as_it_was_to_be(
    tmp_path: Path, operation: Operation, points: Points
) -> None:
    def fresh(name: str) -> Path:
        root = tmp_path / name
        root.mkdir()
        operation.prepare(root)
        return root

    before = state(fresh("before"))
    done = fresh("after")
    assert all("ok" in answer for answer in ask(done, operation))
    after = state(done)
    assert after != before or operation.request.get("name") == DELETED
    counted = fresh("counted")
    calls = calls_of(lambda: ask(counted, operation))
    assert calls > 10
    seen = []
    for number in points.of(range(calls)):
        root = fresh("killed")
        if not killed_at(number, lambda root=root: ask(root, operation)):  # type: ignore[misc]
            assert number > calls - 10, "it had far fewer calls than before"
            break
        left = state(root)
        assert left in (before, after), f"killed at system call {number}"
        seen.append(left == after)
        again = ask(root, operation)[-1]
        assert "ok" in again or (operation.name == "rename_replica" and left == after), again
        assert state(root) == after
        shutil.rmtree(root)
    assert seen == sorted(seen), "there is one moment at which it is done"


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("points", sweep(ci=30))
@pytest.mark.parametrize("name", ["finish_file", "remove_file"])
def test_a_kill_in_a_file_of_a_future_replica_leaves_a_replica_that_can_be_finished(
    tmp_path: Path, name: str, points: Points
) -> None:
    request: dict[str, Any] = {"name": FUTURE, "file": f"{200:020d}.log"}
    if name == "finish_file":
        request |= {"size": 100, "mtime_ns": 5_000_000_000}
    operation = Operation(name, name, request, lambda root: replica(root, FUTURE))

    def fresh(name: str) -> Path:
        root = tmp_path / name
        root.mkdir()
        operation.prepare(root)
        return root

    counted = fresh("counted")
    calls = calls_of(lambda: ask(counted, operation))
    assert calls > 10
    for number in points.of(range(calls)):
        root = fresh(str(number))
        if not killed_at(number, lambda root=root: ask(root, operation)):  # type: ignore[misc]
            assert number > calls - 10, "it had far fewer calls than before"
            break
        left = root / FUTURE / request["file"]
        assert state(root)["ids"] == {FUTURE: TOPIC_ID}
        assert not left.exists() or left.read_bytes() in (b"data" * 200, b"data" * 25)
        assert "ok" in ask(root, operation)[-1]
        if name == "finish_file":
            assert (left.stat().st_size, left.stat().st_mtime_ns) == (100, 5_000_000_000)
        else:
            assert not left.exists()
