"""What a worker does with replicas that are not what they should be: nothing is followed, nothing is deleted."""

import binascii
import contextlib
import errno
import os
import random
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kjbod_host.storage import replica_worker, worker
from kjbod_host.storage.checkpoints import HIGH_WATERMARK, RECOVERY_POINT, changed, offsets
from kjbod_host.storage.conformance import batch
from kjbod_host.storage.segments import last_indexed
from kjbod_host.storage.worker import LINK, delete_form, parse_replica
from tests.agent.storage.here import TOPIC_ID, Here

FUTURE = f"t-0.{'a' * 32}-future"
STRAY = f"t-0.{'b' * 32}-stray"
DELETED = f"t-0.{'c' * 32}-delete"
LOG = f"{0:020d}.log"
METADATA = f"version: 0\ntopic_id: {TOPIC_ID}"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    (tmp_path / "dir").mkdir()
    with Here(tmp_path / "dir") as worker:
        yield worker


def replica(place: Path) -> Path:
    place.mkdir()
    (place / "partition.metadata").write_text(METADATA)
    (place / LOG).write_bytes(b"data")
    return place


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)


NO_FILES: dict[str, Callable[[Path], None]] = {
    "a directory": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a FIFO": _fifo,
    "a socket": _socket,
    "a link through a file": lambda path: path.symlink_to(f"{LOG}/x"),
}


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_and_has_the_name_of_one_speaks_of_no_disk(here: Here, tmp_path: Path, kind: str) -> None:
    place = replica(tmp_path / "dir" / "t-0")
    here.format()
    (place / "partition.metadata").unlink()
    NO_FILES[kind](place / "partition.metadata")
    (tmp_path / "dir" / LOG).touch()
    NO_FILES[kind](tmp_path / "dir" / ".kafka_cleanshutdown")
    assert here.probes(40) == ["ok"] * 40, "what was right before is looked at now and then"
    assert here.ask("load")["ok"]["clean"] is None
    assert here.ask("topic_ids", names=["t-0"])["ok"][0][0] is None
    assert here.ask("create_replica", name="t-0", topic_id=TOPIC_ID)["errno"] == errno.EEXIST


def every_change(here: Here, name: str) -> dict[str, dict[str, Any]]:
    """The answers to all that could harm what has this name."""
    file = {"name": name, "file": LOG}
    with_buffer = {**file, "offset": 0, "place": [0, 4096], "piece": [1, 0, False]}
    here.worker.fds = (os.memfd_create("buffer"),)
    os.ftruncate(here.worker.fds[0], 4096)
    answers = {
        "create_future": here.ask("create_future", name=name, topic_id=TOPIC_ID),
        "rename_replica": here.ask("rename_replica", name=name, new_name=DELETED),
        "delete_replica": here.ask("delete_replica", name=name, topic_id=TOPIC_ID),
        "write_piece": here.ask("write_piece", **with_buffer),
        "finish_file": here.ask("finish_file", **file, size=0, mtime_ns=0),
        "remove_file": here.ask("remove_file", **file),
        "list_files": here.ask("list_files", name=name),
        "log_end_offset": here.ask("log_end_offset", name=name, state=None),
    }
    os.close(here.worker.fds[0])
    here.worker.fds = ()
    return answers


def test_a_link_out_of_the_tree_is_told_and_never_followed(here: Here, tmp_path: Path) -> None:
    outside = replica(tmp_path / "outside")
    for name in ("t-0", FUTURE):
        (here.path / name).symlink_to(outside)
    (here.path / "elsewhere").symlink_to(tmp_path / "outside")
    loaded = here.ask("load")["ok"]
    assert [(name, what) for name, _, what in loaded["obstacles"]] == [("t-0", LINK), (FUTURE, LINK)]
    assert [name for name, _ in loaded["names"]] == ["elsewhere"], "as Kafka has it: it cannot parse that name"
    for operation, answer in every_change(here, FUTURE).items():
        assert answer["errno"] in (errno.ENOTDIR, errno.EEXIST, errno.ELOOP), operation
    assert here.ask("create_replica", name="t-0", topic_id=TOPIC_ID)["errno"] == errno.EEXIST
    assert here.ask("replica_sizes", names=["t-0"], suffix="")["ok"] == [None]
    assert {path.name for path in outside.iterdir()} == {LOG, "partition.metadata"}
    assert (outside / LOG).read_bytes() == b"data"
    assert os.readlink(here.path / FUTURE) == str(outside)


UNREADABLE: dict[str, tuple[bytes | None, str]] = {
    "empty": (b"", "its partition.metadata is empty"),
    "NUL": (bytes(43), "its partition.metadata is all NUL"),
    "another version": (METADATA.replace("0", "7", 1).encode(), "has version 7, and only 0 is known"),
    "torn": (METADATA.encode()[:20], "has no topic id that can be read"),
    "another encoding": (METADATA.encode("utf-16"), "has no topic id that can be read"),
    "missing": (None, f"it has no partition.metadata, and data in {LOG}"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_replica_whose_topic_id_cannot_be_read_says_why(here: Here, kind: str) -> None:
    place, (content, why) = replica(here.path / "t-0"), UNREADABLE[kind]
    replica(here.path / "t-1")
    (place / "partition.metadata").unlink()
    if content is not None:
        (place / "partition.metadata").write_bytes(content)
    (none, said), right = here.ask("topic_ids", names=["t-0", "t-1"])["ok"]
    assert (none, right) == (None, [TOPIC_ID, ""])
    assert why in said


def test_a_replica_without_data_is_told_from_an_empty_directory(here: Here) -> None:
    (here.path / "t-0").mkdir()
    (replica(here.path / "t-1") / "partition.metadata").unlink()
    (here.path / "t-1" / LOG).write_bytes(b"")
    (_, empty), (_, no_data) = here.ask("topic_ids", names=["t-0", "t-1"])["ok"]
    assert ("is its disk not mounted" in empty, no_data) == (True, "")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_one_replica_that_is_denied_is_judged_alone_and_all_of_them_are_the_directory(
    here: Here, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    for name in ("t-0", "t-1", "t-2"):
        replica(here.path / name)
    refused = {"t-1"}
    monkeypatch.setattr(worker, "denied", lambda _, name, mode: number if name in refused else 0)
    assert "ok" in here.ask("load")
    answers = here.ask("topic_ids", names=["t-0", "t-1", "t-2"])["ok"]
    assert [topic_id for topic_id, _ in answers] == [TOPIC_ID, None, TOPIC_ID]
    assert errno.errorcode[number] in answers[1][1]
    refused |= {"t-0", "t-2"}
    assert here.ask("load")["errno"] == number, "a chown that was not recursive"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.ENOKEY, errno.ELOOP, errno.EIO, errno.EUCLEAN])
def test_an_error_of_one_file_is_of_its_replica_or_of_the_medium(
    here: Here, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    replica(here.path / "t-0")

    def refuse(root: int, name: str) -> int:
        raise OSError(number, os.strerror(number), name)

    monkeypatch.setattr(here.worker, "_open_to_read", refuse)
    answer = here.ask("topic_ids", names=["t-0"])
    if number in (errno.EIO, errno.EUCLEAN):
        assert answer["errno"] == number
    else:
        assert answer["ok"][0][0] is None and errno.errorcode[number] in answer["ok"][0][1]


@pytest.mark.parametrize("kind", ["link", "dangling link", "link to a file", "file", "FIFO", "socket"])
def test_what_takes_the_name_of_a_replica_is_told_in_a_list_too_and_nothing_is_made(here: Here, kind: str) -> None:
    place = here.path / "t-0"
    if kind == "socket":
        _socket(place)
    elif kind == "FIFO":
        os.mkfifo(place)
    elif kind == "file":
        place.touch()
    else:
        (here.path / "file").touch()
        target = {"link": "../elsewhere", "dangling link": "/nowhere", "link to a file": "file"}[kind]
        (here.path.parent / "elsewhere").mkdir()
        place.symlink_to(target)
    ((name, _, what),) = here.ask("load")["ok"]["obstacles"]
    assert (name, what.rpartition(" ")[2]) == ("t-0", "link" if "link" in kind else kind)
    assert here.ask("list_replicas")["ok"] == [["t-0", ["t", 0, ""], what]]
    assert here.ask("create_replica", name="t-0", topic_id=TOPIC_ID)["errno"] == errno.EEXIST


@pytest.fixture
def listed(here: Here, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replica directories that the worker has listed."""
    found: list[str] = []
    step = here.worker._step

    def record(call: str) -> None:
        if call.startswith("list of t-"):
            found.append(call.removeprefix("list of "))
        step(call)

    monkeypatch.setattr(here.worker, "_step", record)
    return found


def test_a_start_looks_for_kafkas_data_up_to_the_first_segment_and_in_a_limited_number_of_replicas(
    here: Here, listed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "TRACE_REPLICAS", 3)
    for number in range(5):
        replica(here.path / f"t-{number}")
        if number != 4:
            (here.path / f"t-{number}" / LOG).write_bytes(b"")
    assert here.ask("load")["ok"]["kafka"] is None
    assert listed == ["t-0", "t-1", "t-2"]
    listed.clear()
    (here.path / "t-1" / LOG).write_bytes(b"data")
    assert here.ask("load")["ok"]["kafka"] == f"t-1/{LOG}"
    assert listed == ["t-0", "t-1"]


def test_a_start_finds_kafkas_checkpoints_without_a_look_into_any_replica(here: Here, listed: list[str]) -> None:
    replica(here.path / "t-0")
    (here.path / HIGH_WATERMARK).touch()
    assert here.ask("load")["ok"]["kafka"] == HIGH_WATERMARK
    (here.path / RECOVERY_POINT).touch()
    assert here.ask("load")["ok"]["kafka"] == RECOVERY_POINT
    assert listed == []


@pytest.mark.parametrize("kind", ["file", "fifo"])
def test_a_file_with_the_name_of_a_replica_stays_and_stops_nothing(here: Here, kind: str) -> None:
    place = here.path / FUTURE
    place.write_bytes(b"by hand") if kind == "file" else os.mkfifo(place)
    loaded = here.ask("load")["ok"]
    assert loaded["names"] == [], "Kafka looks at directories alone"
    assert [what for _, _, what in loaded["obstacles"]] == ["it is a file" if kind == "file" else "it is a FIFO"]
    for operation, answer in every_change(here, FUTURE).items():
        assert answer["errno"] in (errno.ENOTDIR, errno.EEXIST), operation
    assert place.exists()


@pytest.mark.parametrize("kind", ["directory", "link", "fifo"])
def test_a_replica_with_something_in_it_that_is_no_file_is_not_removed_even_in_part(
    here: Here, tmp_path: Path, kind: str
) -> None:
    inside = replica(here.path / STRAY) / "zzz"
    if kind == "directory":
        inside.mkdir()
    elif kind == "link":
        inside.symlink_to(tmp_path)
    else:
        os.mkfifo(inside)
    answer = here.ask("delete_replica", name=STRAY, topic_id=TOPIC_ID)
    assert (answer["errno"], "no regular file" in answer["call"]) == (errno.ENOTEMPTY, True)
    assert {path.name for path in (here.path / STRAY).iterdir()} == {LOG, "partition.metadata", "zzz"}
    assert here.ask("list_files", name=STRAY)["errno"] == errno.EINVAL


def test_a_link_in_a_future_replica_is_not_written_through(here: Here, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    place = replica(here.path / FUTURE)
    (place / LOG).unlink()
    (place / LOG).symlink_to(tmp_path / "precious")
    os.link(tmp_path / "precious", place / "other.log")
    for file in (LOG, "other.log"):
        assert here.ask("finish_file", name=FUTURE, file=file, size=0, mtime_ns=0)["errno"] in (
            errno.ELOOP,
            errno.EINVAL,
        )
    assert (tmp_path / "precious").read_bytes() == b"precious"


def test_a_rest_of_an_interrupted_removal_is_removed_when_it_is_asked_for_again(here: Here) -> None:
    place = replica(here.path / delete_form(STRAY))
    (place / LOG).unlink()
    assert here.ask("delete_replica", name=STRAY, topic_id=TOPIC_ID)["ok"] is False
    assert list(here.path.iterdir()) == []


def test_an_empty_rest_has_no_topic_id_any_more_and_goes_too(here: Here) -> None:
    (here.path / DELETED).mkdir()
    assert here.ask("delete_replica", name=DELETED, topic_id=TOPIC_ID)["ok"] is False
    assert list(here.path.iterdir()) == []


def test_a_rest_of_an_interrupted_creation_is_taken_by_kafka_for_deleted_and_used_again(here: Here) -> None:
    rest = here.path / "t-0.kjbod-new-delete"
    rest.mkdir()
    (rest / "partition.metadata").write_text("version: 0\ntopic_id: 9bFlIkpYt5HfavHYMD5hzQ")
    assert parse_replica(rest.name) == ("t", 0, "delete")
    assert "ok" in here.ask("create_replica", name="t-0", topic_id=TOPIC_ID)
    assert [path.name for path in here.path.iterdir()] == ["t-0"]
    assert (here.path / "t-0" / "partition.metadata").read_text() == METADATA


def test_names_of_deleted_replicas_never_get_too_long() -> None:
    longest = f"{'x' * 240}-0.{'a' * 7}-stray"
    assert len(longest) == 256
    assert len(delete_form(longest)) == 255
    assert delete_form(STRAY) == f"t-0.{'b' * 32}-delete"
    assert delete_form(DELETED) == DELETED
    assert parse_replica(delete_form(longest)) == ("x" * 238, 0, "delete")


def test_large_removals_are_cut_up(here: Here) -> None:
    place = replica(here.path / DELETED)
    for number in range(3 * replica_worker.UNLINKS_PER_REQUEST):
        (place / f"{number:020d}.log").write_bytes(b"")
    answers: list[bool] = []
    while not answers or answers[-1]:
        assert here.path.joinpath(DELETED, "partition.metadata").exists(), "it says whose the rest is"
        answers.append(here.ask("delete_replica", name=DELETED, topic_id=TOPIC_ID)["ok"])
    assert answers == [True, True, True, False]


def test_the_end_of_a_log_is_found_from_its_index_and_a_wrong_index_does_no_harm(here: Here) -> None:
    place = replica(here.path / "t-0")
    batches = [batch(offset, 1) for offset in range(1000)]
    content = b"".join(batches)
    (place / LOG).write_bytes(content)
    index = b"".join(struct.pack(">iI", offset, offset * len(batches[0])) for offset in range(40, 1000, 40))
    for entries, zeros in ((index, 0), (index, 10 << 20), (b"", 4096), (struct.pack(">iI", 7, 33), 0)):
        (place / f"{0:020d}.index").write_bytes(entries + bytes(zeros))
        answer = here.ask("log_end_offset", name="t-0", state=None)
        assert answer["ok"] == {"end": 1000}
    (place / LOG).write_bytes(content[: 100 * len(batches[0]) + 5])
    (place / f"{0:020d}.index").write_bytes(index)
    assert here.ask("log_end_offset", name="t-0", state=None)["ok"] == {"end": 100}


def test_a_log_without_index_is_read_in_several_requests(here: Here) -> None:
    place = replica(here.path / "t-0")
    count = 2 * replica_worker.BATCHES_PER_REQUEST + 10
    (place / LOG).write_bytes(b"".join(batch(offset, 1, payload=0) for offset in range(count)))
    answers = [here.ask("log_end_offset", name="t-0", state=None)["ok"]]
    while "state" in answers[-1]:
        answers.append(here.ask("log_end_offset", name="t-0", state=answers[-1]["state"])["ok"])
    assert answers[-1] == {"end": count}
    assert len(answers) == 3


@pytest.mark.parametrize("used", range(0, 70, 7))
def test_the_last_entry_of_a_preallocated_index_is_found(used: int) -> None:
    content = b"".join(struct.pack(">iI", number, number * 4096) for number in range(1, used + 1)) + bytes(800)
    assert last_indexed(len(content), lambda offset, size: content[offset : offset + size]) == used * 4096


@pytest.mark.parametrize(
    "content",
    [
        b"0\n",
        b"1\n0\n",
        b"0\n2\nt 0 5\n",
        b"0\n1\nt 0 5\nu 0 5\n",
        b"0\n1\nt 0\n",
        b"0\n1\nt x 5\n",
        b"0\n1\nt 0 5 6\n",
        b"\x00\x00",
    ],
)
def test_a_checkpoint_that_kafka_cannot_read_is_left_alone(here: Here, content: bytes) -> None:
    assert offsets(content) is None
    assert changed(content, [("t", 0, 9)]) is None
    (here.path / HIGH_WATERMARK).write_bytes(content)
    assert "ok" in here.ask("change_checkpoint", name=HIGH_WATERMARK, changes=[["t", 0, 9]])
    assert (here.path / HIGH_WATERMARK).read_bytes() == content


def test_checkpoints_are_byte_for_byte_what_kafka_writes(here: Here) -> None:
    here.ask("change_checkpoint", name=HIGH_WATERMARK, changes=[["t", 0, 9], ["__consumer_offsets", 49, 0]])
    assert (here.path / HIGH_WATERMARK).read_bytes() == b"0\n2\nt 0 9\n__consumer_offsets 49 0\n"
    here.ask("change_checkpoint", name=HIGH_WATERMARK, changes=[["t", 0, None], ["__consumer_offsets", 49, None]])
    assert (here.path / HIGH_WATERMARK).read_bytes() == b"0\n0\n"
    assert [path.name for path in here.path.iterdir()] == [HIGH_WATERMARK]


def test_a_large_checkpoint_is_read_whole(here: Here) -> None:
    lines = b"".join(b"topic-%05d 0 %d\n" % (number, number) for number in range(20_000))
    (here.path / HIGH_WATERMARK).write_bytes(b"0\n20000\n" + lines)
    here.ask("change_checkpoint", name=HIGH_WATERMARK, changes=[["topic-00007", 0, None]])
    found = offsets((here.path / HIGH_WATERMARK).read_bytes())
    assert found is not None
    assert len(found) == 19_999


def test_pieces_are_read_up_to_holes_and_at_odd_places(here: Here) -> None:
    place = replica(here.path / "t-0")
    content = random.Random(1).randbytes(1 << 20)
    with (place / LOG).open("wb") as log:
        log.write(content)
        log.seek(3 << 20)
        log.write(content[:5000])
    here.worker.fds = (os.memfd_create("buffer"),)
    os.ftruncate(here.worker.fds[0], 8 << 20)

    def read(offset: int, length: int) -> list[Any]:
        request = {"name": "t-0", "file": LOG, "offset": offset, "length": length, "place": [4 << 20, 4 << 20]}
        answer: list[Any] = here.ask("read_piece", **request)["ok"]
        return answer

    try:
        assert read(0, 4 << 20) == [1 << 20, binascii.crc32(content), False]
        assert os.pread(here.worker.fds[0], 1 << 20, 4 << 20) == content
        assert read(1 << 20, 4 << 20) == [2 << 20, binascii.crc32(bytes(2 << 20)), True]
        assert read(3 << 20, 4 << 20) == [5000, binascii.crc32(content[:5000]), False]
        assert read(123, 777_777) == [777_777, binascii.crc32(content[123 : 123 + 777_777]), False]
        assert read(3 << 20, 300_000) == [5000, binascii.crc32(content[:5000]), False]
        assert read(4 << 20, 10) == [0, 0, False]
    finally:
        os.close(here.worker.fds[0])
