"""What is wrong with a controller's directory or configuration at its start: one line says it, and nothing is changed.

The rows of :mod:`tests.system.test_bad_input` are the same with the real command.
"""

import errno
import fcntl
import functools
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kjbod.clock import SystemClock
from kjbod.errors import KjbodError, StorageError
from kjbod.ids import ONE, Uuid, is_reserved
from kjbod.meta_properties import META_PROPERTIES_NAME, parse_meta_properties
from kjbod.metadata.batches import encode_batch
from kjbod.metadata.checkpoint_files import write_checkpoint
from kjbod.metadata.clean_stop import CleanStop, write_clean_stop
from kjbod.metadata.control_records import KRaftVoters, SnapshotFooter, SnapshotHeader, Voter, VoterEndpoint
from kjbod.metadata.records import FeatureLevelRecord, encode_record
from kjbod.metadata.snapshot import SnapshotId
from kjbod_controller_stub.log import controller_directory
from kjbod_controller_stub.server import ControllerServer
from tests.controller.conftest import Site
from tests.controller.world import CLUSTER_ID, NODE_ID


def _log(node: Site) -> Path:
    return node.log_dir / "__cluster_metadata-0"


def _log_of(node: Site, *batches: bytes, start: int = 0) -> None:
    (_log(node) / f"{start:020d}.log").write_bytes(b"".join(batches))


def _feature(level: int) -> FeatureLevelRecord:
    return FeatureLevelRecord(name="metadata.version", feature_level=level)


def _data(value: bytes, offset: int = 0) -> bytes:
    return encode_batch([value], offset, 1, 1_700_000_000_000)


GOOD = _data(encode_record(_feature(30), 0))
"""A log's first batch."""
FUTURE = b"\x01\x63\x00"
"""A metadata record of type 99."""
NEWER = b"\x01\x14\x09"
"""A NoOpRecord of version 9."""


def _first(node: Site) -> Path:
    return _log(node) / SnapshotId(0, 0).file_name


def _bootstrap(node: Site, level: int) -> None:
    path = node.log_dir / "bootstrap.checkpoint"
    write_checkpoint(path, header_timestamp_ms=0, kraft=None, records=[_feature(level)])


def _bootstrap_without_log(node: Site) -> None:
    _first(node).unlink()
    _bootstrap(node, 30)


def _fifo_for_first(node: Site) -> None:
    _first(node).unlink()
    _fifo(node, _first(node).name)


def _first_with(node: Site, level: int) -> None:
    write_checkpoint(_first(node), header_timestamp_ms=0, kraft=None, records=[_feature(level)])


def _snapshot(node: Site, data: bytes, end: int = 7) -> None:
    (_log(node) / f"{end:020d}-{1:010d}.checkpoint").write_bytes(data)


def _snapshot_with(*values: bytes) -> bytes:
    head = encode_batch([SnapshotHeader(last_contained_log_timestamp=1)], 0, 1, 1, control=True)
    middle = b"".join(_data(value, offset) for offset, value in enumerate(values, start=1))
    return head + middle + encode_batch([SnapshotFooter()], 1 + len(values), 1, 1, control=True)


def _voters(node: Site, *ids: int) -> None:
    endpoints = (VoterEndpoint(name="CONTROLLER", host="h", port=1),)
    voters = tuple(Voter(voter_id=each, voter_directory_id=Uuid.of(each, 1), endpoints=endpoints) for each in ids)
    path = _log(node) / f"{0:020d}-{0:010d}.checkpoint"
    write_checkpoint(path, header_timestamp_ms=0, kraft=(1, KRaftVoters(voters=voters)), records=())


def _file_instead(node: Site) -> None:
    shutil.rmtree(node.log_dir)
    node.log_dir.touch()


def _log_behind_the_snapshot(node: Site) -> None:
    _snapshot(node, _snapshot_with(encode_record(_feature(30), 0)))
    _log_of(node, _data(encode_record(_feature(30), 0), 9), start=9)


def _stopped_at(node: Site, end_offset: int) -> None:
    stop = CleanStop(epoch=1, end_offset=end_offset, file_name=f"{3:020d}.log", size_bytes=99)
    write_clean_stop(_log(node), stop)


def _log_that_lost_its_end(node: Site) -> None:
    _log_of(node, GOOD)
    _stopped_at(node, 5)


def _stopped_before_a_snapshot(node: Site) -> None:
    _another_history(node, 20, 1)
    _quorum_state(node)
    _stopped_at(node, 9)


def _cut_log(node: Site) -> None:
    """A crash, and a log that ends before the snapshot that was made of it."""
    _another_history(node, 20, 1)
    _quorum_state(node)


def _of_an_epoch_to_come(node: Site, epoch: int) -> None:
    _another_history(node, 20, epoch)
    _quorum_state(node, leaderEpoch=3)


def _fifo(node: Site, name: str) -> None:
    os.mkfifo(_log(node) / name)


def _log_with_a_fifo_for_its_index(node: Site) -> None:
    _log_of(node, GOOD)
    _fifo(node, f"{0:020d}.index")


def _fifo_for_meta_properties(node: Site) -> None:
    (node.log_dir / "meta.properties").unlink()
    os.mkfifo(node.log_dir / "meta.properties")


def _huge_quorum_state(node: Site) -> None:
    (_log(node) / "quorum-state").touch()
    os.truncate(_log(node) / "quorum-state", 3 << 30)


def _emptied_log(node: Site) -> None:
    """What a file system leaves of a file whose size it had not written."""
    _log_of(node)
    _quorum_state(node, leaderEpoch=4)
    (_log(node) / "leader-epoch-checkpoint").write_text("0\n4\n1 0\n2 437\n3 440\n4 442\n")


def _quorum_state(node: Site, **values: object) -> None:
    known = {"leaderId": 3000, "leaderEpoch": 1, "votedId": -1, "data_version": 1}
    pairs = (f'"{key}":{value}' for key, value in (known | values).items())
    (_log(node) / "quorum-state").write_text("{" + ",".join(pairs) + "}")


NO_QUORUM_STATE = "quorum-state is not a quorum-state file; restore it or remove it"


def _another_history(node: Site, end: int, epoch: int, *, own: int | None = None) -> None:
    """A log of nine records of epoch 1, and a snapshot."""
    _log_of(node, *(_data(encode_record(_feature(30), 0), offset) for offset in range(9)))
    for at, of in ((end, epoch), *(() if own is None else ((own, 1),))):
        path = _log(node) / f"{at:020d}-{of:010d}.checkpoint"
        path.write_bytes(_snapshot_with(encode_record(_feature(30), 0)))


MISTAKES: dict[str, tuple[Callable[[Site], object], str]] = {
    "another node's directory": (
        lambda n: n.format(node_id=1),
        "belongs to node 1, the configuration says node.id=3000",
    ),
    "a file for a directory": (
        _file_instead,
        "metadata/meta.properties: Not a directory",
    ),
    "several voters": (
        lambda n: n.configure(controller_quorum_voters="3000@h:1,3001@h:2"),
        "several voters are Apache Kafka's own controllers, agents work with them",
    ),
    "another voter": (lambda n: n.configure(controller_quorum_voters="3001@h:2"), "3000"),
    "formatted for several voters": (
        lambda n: _voters(n, NODE_ID, 3001),
        "voters [3000, 3001]: kjbod controller is a quorum of one; run Apache Kafka's own controllers there",
    ),
    "formatted with a metadata.version of the future": (
        lambda n: _bootstrap(n, 99),
        "has metadata.version 99, which kjbod controller does not support: it runs 7 to 33",
    ),
    "formatted with one that is too old": (lambda n: _bootstrap(n, 6), "metadata.version 6"),
    "a log at a metadata.version of the future": (
        lambda n: _log_of(n, _data(encode_record(_feature(99), 0))),
        "has finalized metadata.version 99",
    ),
    **{
        f"a quorum-state with {text}": (functools.partial(_quorum_state, leaderEpoch=text), NO_QUORUM_STATE)
        for text in ("1e400", "NaN", "2147483648", "-1", "1.5", "true", '"1"', "null", "9" * 5_000)
    },
    "a quorum-state that nests deep": (
        lambda n: (_log(n) / "quorum-state").write_text("[" * 200_000),
        NO_QUORUM_STATE,
    ),
    "a quorum-state of a version that is no number": (
        lambda n: _quorum_state(n, data_version="1e400"),
        NO_QUORUM_STATE,
    ),
    "a quorum-state with the last epoch": (
        lambda n: _quorum_state(n, leaderEpoch=2**31 - 1),
        "quorum-state has leader epoch 2147483647, the last one that there can be",
    ),
    "a log with the last epoch": (
        lambda n: _log_of(n, encode_batch([encode_record(_feature(30), 0)], 0, 2**31 - 1, 1)),
        "the log has leader epoch 2147483647, the last one that there can be",
    ),
    "a snapshot with the last epoch": (
        lambda n: _another_history(n, 20, 2**31 - 1),
        "00000000000000000020-2147483647.checkpoint has leader epoch 2147483647",
    ),
    "a snapshot of a later epoch that ends within the log": (
        lambda n: _another_history(n, 5, 7),
        "00000000000000000005-0000000007.checkpoint is of another history: it ends at offset 5 in epoch 7, and the log "
        "has epoch 1 there",
    ),
    "a snapshot of a later epoch before its own": (
        lambda n: _another_history(n, 0, 7, own=5),
        "00000000000000000000-0000000007.checkpoint is of another history",
    ),
    **{
        f"a FIFO for {name}": (functools.partial(_fifo, name=name), f"{name}: Not a regular file")
        for name in (".kjbod_clean_stop", "leader-epoch-checkpoint")
    },
    "a FIFO for the index": (
        _log_with_a_fifo_for_its_index,
        "00000000000000000000.index: Not a regular file",
    ),
    "a FIFO for quorum-state": (
        lambda n: _fifo(n, "quorum-state"),
        "quorum-state from its disk: Not a regular file",
    ),
    "a directory for quorum-state": (
        lambda n: (_log(n) / "quorum-state").mkdir(),
        "quorum-state from its disk: Is a directory",
    ),
    "a quorum-state of 3 GiB": (
        _huge_quorum_state,
        "quorum-state from its disk: 3221225472 bytes are too many",
    ),
    "a FIFO for a segment": (
        lambda n: _fifo(n, f"{99:020d}.log"),
        "00000000000000000099.log from its disk: Not a regular file",
    ),
    "a segment that is a link to nothing": (
        lambda n: (_log(n) / f"{99:020d}.log").symlink_to("/nonexistent"),
        "00000000000000000099.log: No such file or directory",
    ),
    "a FIFO for a snapshot": (
        lambda n: _fifo(n, f"{99:020d}-{9:010d}.checkpoint"),
        "00000000000000000099-0000000009.checkpoint: Not a regular file",
    ),
    "a FIFO for the first snapshot": (
        lambda n: _fifo_for_first(n),
        "00000000000000000000-0000000000.checkpoint: Not a regular file",
    ),
    "a reserved directory id": (
        lambda n: n.format(directory_id=ONE),
        "metadata/meta.properties has the reserved directory.id AAAAAAAAAAAAAAAAAAAAAQ",
    ),
    "a FIFO for meta.properties": (
        _fifo_for_meta_properties,
        "metadata/meta.properties: Not a regular file",
    ),
    "no log where one was formatted": (
        lambda n: _bootstrap_without_log(n),
        "__cluster_metadata-0 has neither a metadata log nor 00000000000000000000-0000000000.checkpoint",
    ),
    "no log where one was formatted at 4.4": (
        lambda n: shutil.rmtree(_log(n)),
        "__cluster_metadata-0 has neither a metadata log nor 00000000000000000000-0000000000.checkpoint",
    ),
    "nothing left of a log that was formatted at 4.4": (
        lambda n: _first(n).unlink(),
        "__cluster_metadata-0 has neither a metadata log nor 00000000000000000000-0000000000.checkpoint",
    ),
    "the first snapshot with a metadata.version of the future": (
        lambda n: _first_with(n, 34),
        "has metadata.version 34, which kjbod controller does not support: it runs 7 to 33",
    ),
    "a snapshot of an epoch that nobody opened": (
        lambda n: _of_an_epoch_to_come(n, 9),
        "00000000000000000020-0000000009.checkpoint is of another history: it ends at offset 20 in epoch 9, and "
        "quorum-state knows no epoch after 3",
    ),
    "a snapshot that ends after the clean stop": (
        _stopped_before_a_snapshot,
        "has a snapshot of another history: it ends at offset 20, and when kjbod controller stopped, ",
    ),
    "a log that ends before the snapshot that was made of it": (
        _cut_log,
        "has lost the records from offset 9 on: 00000000000000000020-0000000001.checkpoint has those below 20",
    ),
    "two snapshots with one end": (
        lambda n: _another_history(n, 5, 0, own=5),
        "00000000000000000005-0000000000.checkpoint is of another history",
    ),
    "a snapshot of an older epoch that ends after the log": (
        lambda n: _another_history(n, 20, 0),
        "is of another history: it ends at offset 20 in epoch 0, and the log ends at 9 in epoch 1",
    ),
    "a segment of an impossible offset": (
        lambda n: _log_of(n, GOOD, start=99999999999999999999),
        "99999999999999999999.log is no segment",
    ),
    "a record of the future": (
        lambda n: _log_of(n, GOOD, _data(FUTURE, 1)),
        "__cluster_metadata-0/00000000000000000000.log: offset 1: metadata record 99",
    ),
    "a newer version of a record": (
        lambda n: _log_of(n, GOOD, _data(NEWER, 1)),
        "__cluster_metadata-0/00000000000000000000.log: offset 1: metadata record 20 version 9",
    ),
    "a snapshot of the future": (
        lambda n: _snapshot(n, _snapshot_with(FUTURE)),
        "00000000000000000007-0000000001.checkpoint cannot be read at position",
    ),
    "a snapshot at a metadata.version of the future": (
        lambda n: _snapshot(n, _snapshot_with(encode_record(_feature(99), 0))),
        "has metadata.version 99",
    ),
    "half a snapshot": (
        lambda n: _snapshot(n, _snapshot_with(encode_record(_feature(30), 0))[:-9]),
        "00000000000000000007-0000000001.checkpoint is corrupt at position",
    ),
    "a log that starts behind the snapshot": (
        _log_behind_the_snapshot,
        "lacks the records from offset 7 to 8: the log starts with 00000000000000000009.log",
    ),
    "a log without the snapshot it needs": (
        lambda n: _log_of(n, _data(encode_record(_feature(30), 0), 9), start=9),
        "lacks the records from offset 0 to 8: the log starts with 00000000000000000009.log",
    ),
    "a log with a damaged batch": (
        lambda n: _log_of(n, GOOD, GOOD[:30] + b"\xff" + GOOD[31:], _data(encode_record(_feature(30), 0), 2)),
        f"00000000000000000000.log is corrupt at position {len(GOOD)}",
    ),
    "a log that lost its end after a clean stop": (
        _log_that_lost_its_end,
        "records from offset 1 to 4: when kjbod controller stopped, 00000000000000000003.log with 99 bytes",
    ),
    "no log at all after a clean stop": (
        lambda n: _stopped_at(n, 5),
        "has lost the records from offset 0 to 4",
    ),
    "an emptied log that had later epochs": (
        _emptied_log,
        "has lost the records from offset 0 to 441: they were on the disk when leader epoch 4 began at offset 442",
    ),
    "a log of which an index is left": (
        lambda n: (_log(n) / f"{0:020d}.index").touch(),
        "has lost the records from offset 0 on: 00000000000000000000.index is there, and its segment is not",
    ),
    "a quorum-state that is none": (
        lambda n: (_log(n) / "quorum-state").write_text("leader=1"),
        "quorum-state is not a quorum-state file",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_controller_refuses_in_one_line_and_changes_nothing(site: Site, mistake: str) -> None:
    make, words = MISTAKES[mistake]
    (site.log_dir / "__cluster_metadata-0").mkdir(exist_ok=True)
    make(site)
    before = tree(site.log_dir)
    with pytest.raises(KjbodError) as refused:
        server = await ControllerServer.start(site.config, clock=SystemClock(), rng=random.Random(1))
        await server.close()
    line = str(refused.value)
    assert words in line
    assert "\n" not in line
    assert tree(site.log_dir) == before


@pytest.mark.parametrize("version", [1, 0])
async def test_a_directory_from_before_kafka_3_7_gets_an_id_at_the_start_and_keeps_it(site: Site, version: int) -> None:
    """``version`` 0: of a broker that was migrated from ZooKeeper."""
    site.format()
    node = "broker.id" if version == 0 else "node.id"
    file = site.log_dir / META_PROPERTIES_NAME
    file.write_text(f"version={version}\n{node}={NODE_ID}\ncluster.id={CLUSTER_ID}\n")
    found = []
    for _ in range(2):
        server = await ControllerServer.start(site.config, clock=SystemClock(), rng=random.Random())
        found.append(parse_meta_properties(file.read_bytes(), str(file)))
        await server.close()
    assert found[0] == found[1]
    assert found[0].directory_id is not None and not is_reserved(found[0].directory_id)
    assert (found[0].version, found[0].node_id, found[0].cluster_id) == (version, NODE_ID, CLUSTER_ID)


async def test_a_directory_that_takes_no_id_is_named_and_serves_nobody(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.format()
    file = site.log_dir / META_PROPERTIES_NAME
    text = f"version=1\nnode.id={NODE_ID}\ncluster.id={CLUSTER_ID}\n"
    file.write_text(text)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(controller_directory, "write_atomically", refuse)
    with pytest.raises(StorageError, match=r"cannot give .* a directory\.id in .*: No space left on device"):
        await ControllerServer.start(site.config, clock=SystemClock(), rng=random.Random())
    assert file.read_text() == text


def test_a_lock_file_that_its_holder_removed_when_it_stopped_is_not_the_lock(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = site.log_dir / controller_directory.LOCK_NAME
    real, stopping = fcntl.lockf, [True]

    def lockf(fd: int, how: int) -> None:
        if stopping:
            stopping.clear()
            path.unlink()  # another controller that stops, between the open and the lock
        real(fd, how)

    monkeypatch.setattr(fcntl, "lockf", lockf)
    taken = controller_directory.open_directory(site.config)
    assert os.path.samestat(os.fstat(taken.lock_fd), path.stat())
    taken.release()
    assert not path.exists()


def tree(root: Path) -> dict[str, bytes | None]:
    found = {path: path.is_file() and path.stat().st_size < 1 << 20 for path in [root, *root.rglob("*")]}
    return {str(path): path.read_bytes() if small else None for path, small in found.items()}
