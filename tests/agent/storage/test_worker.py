"""The worker's own rules: names, contents and the files it leaves."""

import errno
import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kjbod_host.storage import worker
from kjbod_host.storage.replica_worker import ReplicaWorker
from kjbod_host.storage.worker import directory_id_of, known_block, parse_replica, topic_id_of


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("orders-0", ("orders", 0, "")),
        ("my-topic.v2-17", ("my-topic.v2", 17, "")),
        (f"t-3.{'a' * 32}-future", ("t", 3, "future")),
        (f"t-3.{'a' * 32}-delete", ("t", 3, "delete")),
        (f"a.b-c-3.{'a' * 32}-stray", ("a.b-c", 3, "stray")),
        ("__consumer_offsets-49", ("__consumer_offsets", 49, "")),
        ("lost+found", None),
        ("t-", None),
        ("-1", None),
        ("t-x", None),
        ("t-future", None),
        ("t-٣", None),
        ("t-2147483647", ("t", 2147483647, "")),
        ("t-2147483648", None),
        ("t-+5", ("t", 5, "")),
        ("t-+", None),
        ("orders-0.bak", None),
    ],
)
def test_replica_names_are_read_as_kafka_reads_them(name: str, parsed: tuple[str, int, str] | None) -> None:
    assert parse_replica(name) == parsed


@pytest.mark.parametrize(
    ("content", "directory_id"),
    [
        (b"#\n#Thu Aug 18\nnode.id=1\ndirectory.id=9bFlIkpYt5HfavHYMD5hzQ\nversion=1\n", "9bFlIkpYt5HfavHYMD5hzQ"),
        (b"directory.id = A\r\ndirectory.id:B\r\n", "B"),
        (b"#directory.id=A\nmydirectory.id=B\n", None),
        (bytes(4096), None),
    ],
)
def test_the_directory_id_is_found_in_java_properties(content: bytes, directory_id: str | None) -> None:
    assert directory_id_of(content) == directory_id


@pytest.mark.parametrize(
    ("content", "topic_id"),
    [
        (b"version: 0\ntopic_id: c6m-9Jm7RNy70qTyyK9b2Q", "c6m-9Jm7RNy70qTyyK9b2Q"),
        (b"version: 0\ntopic_id: c6m-9Jm7RNy70qTyyK9b2Q\n", "c6m-9Jm7RNy70qTyyK9b2Q"),
        (b"version: 1\ntopic_id: c6m-9Jm7RNy70qTyyK9b2Q", None),
        (b"", None),
        (b"topic_id: c6m-9Jm7RNy70qTyyK9b2Q", None),
    ],
)
def test_partition_metadata_is_read_as_kafka_reads_it(content: bytes, topic_id: str | None) -> None:
    assert topic_id_of(content) == topic_id


@pytest.fixture
def here(tmp_path: Path) -> Iterator[ReplicaWorker]:
    """A worker in this process, without a keeper."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    status = os.memfd_create("status")
    with ours, theirs:
        yield ReplicaWorker(str(tmp_path), "broker", status, ours)
    os.close(status)


def ask(here: ReplicaWorker, operation: str, **arguments: Any) -> dict[str, Any]:
    request = {"n": 1, "op": operation, "expect": [None, None], **arguments}
    return json.loads(json.dumps(here.answer(json.loads(json.dumps(request)))))  # type: ignore[no-any-return]


def test_a_probe_leaves_plain_files_only_which_kafka_ignores(here: ReplicaWorker, tmp_path: Path) -> None:
    for _ in range(3):
        assert "ok" in ask(here, "probe", full=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".kjbod_created", ".kjbod_known", ".kjbod_probe"]
    assert all(stat.S_ISREG(p.stat().st_mode) for p in tmp_path.iterdir())


def test_the_known_file_holds_known_blocks(here: ReplicaWorker, tmp_path: Path) -> None:
    ask(here, "probe", full=True)
    content = (tmp_path / ".kjbod_known").read_bytes()
    assert content == b"".join(known_block(index) for index in range(worker.KNOWN_BLOCKS))


def test_a_new_replica_is_byte_for_byte_what_kafka_makes(here: ReplicaWorker, tmp_path: Path) -> None:
    ask(here, "create_replica", name="t-0", topic_id="c6m-9Jm7RNy70qTyyK9b2Q")
    assert [p.name for p in (tmp_path / "t-0").iterdir()] == ["partition.metadata"]
    content = (tmp_path / "t-0" / "partition.metadata").read_bytes()
    assert content == b"version: 0\ntopic_id: c6m-9Jm7RNy70qTyyK9b2Q"


def test_a_replica_that_a_crash_left_half_made_is_completed(here: ReplicaWorker, tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "partition.metadata.tmp").write_bytes(b"ver")
    assert "ok" in ask(here, "create_replica", name="t-0", topic_id="c6m-9Jm7RNy70qTyyK9b2Q")
    assert [p.name for p in (tmp_path / "t-0").iterdir()] == ["partition.metadata"]


def test_a_log_with_data_and_without_topic_id_is_not_taken_over(here: ReplicaWorker, tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "00000000000000000000.log").write_bytes(b"data")
    assert ask(here, "create_replica", name="t-0", topic_id="c6m-9Jm7RNy70qTyyK9b2Q")["errno"] == 17
    assert (tmp_path / "t-0" / "00000000000000000000.log").read_bytes() == b"data"


def test_a_deleted_replica_with_somebody_elses_data_stays(here: ReplicaWorker, tmp_path: Path) -> None:
    gone = tmp_path / f"t-0.{'0' * 32}-delete"
    (gone / "somebody's").mkdir(parents=True)
    (gone / "partition.metadata").write_bytes(b"version: 0\ntopic_id: c6m-9Jm7RNy70qTyyK9b2Q")
    (gone / "00000000000000000000.log").write_bytes(b"data")
    answer = ask(here, "delete_replica", name=gone.name, topic_id="c6m-9Jm7RNy70qTyyK9b2Q")
    assert answer["errno"] == errno.ENOTEMPTY
    assert len(list(gone.iterdir())) == 3


def test_a_missing_directory_is_never_made(here: ReplicaWorker, tmp_path: Path) -> None:
    tmp_path.rmdir()
    for operation in ("load", "probe", "lock", "unlock", "clear_clean_shutdown"):
        assert ask(here, operation, full=True)["errno"] == 2
    assert not tmp_path.exists()
    tmp_path.mkdir()


def test_a_bug_of_ours_is_not_reported_as_a_broken_disk(here: ReplicaWorker) -> None:
    answer = ask(here, "create_replica", name=7)
    assert "errno" not in answer
    assert "TypeError" in answer["trouble"] or "trouble" in answer


def test_a_lock_file_that_its_holder_removed_when_it_stopped_is_not_the_lock(
    here: ReplicaWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper, name = worker.Keeper(), tmp_path / ".lock"
    asked: list[str] = []

    def ask_keeper(question: str, *fds: int) -> bytes:
        asked.append(question)
        if asked.count("lock") == 1 and question == "lock":
            name.unlink()  # a controller or broker that stops, between the open and the lock
        return keeper.answer(question, str(tmp_path), [os.dup(fd) for fd in fds])

    monkeypatch.setattr(here, "_ask_keeper", ask_keeper)
    assert "errno" not in ask(here, "lock")
    assert asked == ["held", "lock", "unlock", "lock"]
    ((held,),) = keeper._held.values()
    assert os.path.samestat(os.fstat(held), name.stat())
    os.close(held)
