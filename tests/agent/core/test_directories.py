"""Start-up rules for log directories. Ids are those of kafka-jbod 9.3."""

import errno
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from kjbod.errors import StorageError
from kjbod.ids import Uuid
from kjbod_agent.directories import KNOWN_DIRECTORIES_NAME, KnownDirectories, Load, StartUp, StartUpError, examine
from kjbod_agent.storage.api import DirectoryError, DirectoryTimeout, LoadedDirectory, MountIdentity, WorkerUnavailable

IDS = {path: Uuid.of(7, n) for n, path in enumerate(("/d1", "/d2", "/d3"), start=1)}


def meta(path: str, *, node: int = 1, cluster: str = "c", with_id: bool = True) -> bytes:
    directory = f"directory.id={IDS[path]}\n" if with_id else ""
    return f"version=1\nnode.id={node}\ncluster.id={cluster}\n{directory}".encode()


def loaded(path: str, content: bytes | None = None, *, epoch: int | None = None) -> LoadedDirectory:
    return LoadedDirectory(
        path=path,
        real_path=path,
        meta_properties=meta(path) if content is None else content,
        directory_id=None,
        replicas=(),
        unknown_names=(),
        has_cluster_metadata=False,
        identity=MountIdentity(1, 1, "7:0", 2, "0", None),
        total_bytes=1,
        usable_bytes=1,
        clean_shutdown=epoch is not None,
        clean_shutdown_epoch=epoch,
    )


def start(*paths: str, **changed: Load) -> StartUp:
    """Start with ``/d1`` as the metadata directory; keywords d1, d2, d3 replace what a directory says."""
    loads = {path: changed.get(path[1:], loaded(path)) for path in paths}
    return examine(
        node_id=1,
        log_dirs=paths,
        metadata_log_dir="/d1",
        loads=loads,
        remembered=IDS,
        rng=random.Random(1),
    )


def test_su_1_a_file_without_directory_id_gets_one() -> None:
    start_up = start("/d1", "/d2", d2=loaded("/d2", meta("/d2", with_id=False)))
    assert set(start_up.to_write) == {"/d2"}
    assert start_up.log_dirs[1].directory_id == start_up.to_write["/d2"].directory_id


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOTDIR, errno.EACCES])
def test_su_4_an_unreadable_metadata_directory_is_refused(number: int) -> None:
    with pytest.raises(StorageError, match="metadata log directory /d1"):
        start("/d1", "/d2", d1=DirectoryError(number, "open of meta.properties", "/d1"))


@pytest.mark.parametrize(
    "bad",
    [
        DirectoryError(errno.ENOTDIR, "open of /d2", "/d2"),
        DirectoryError(errno.EIO, "read of meta.properties", "/d2"),
        DirectoryTimeout(10_000, "io_schedule", "read of meta.properties", "/d2"),
        loaded("/d2", b"version=1\nnode.id=what\n"),
    ],
)
def test_su_5_an_unreadable_data_directory_is_left_out_and_its_id_is_remembered(bad: Load) -> None:
    start_up = start("/d1", "/d2", d2=bad)
    assert [d.path for d in start_up.log_dirs] == ["/d1"]
    assert [(u.path, u.directory_id) for u in start_up.unreadable] == [("/d2", IDS["/d2"])]


REFUSED: dict[str, tuple[dict[str, Load], str]] = {
    "su_2_another_node": ({"d2": loaded("/d2", meta("/d2", node=2))}, "Stored node id 2 doesn't match"),
    "su_3_no_file": ({"d2": replace(loaded("/d2"), meta_properties=None)}, "kjbod format"),
    "missing_mount": ({"d2": DirectoryError(errno.ENOENT, "open of /d2", "/d2")}, "mount its disk"),
    "su_6_metadata_elsewhere": ({"d2": replace(loaded("/d2"), has_cluster_metadata=True)}, "unexpected metadata"),
    "su_7_another_cluster": ({"d2": loaded("/d2", meta("/d2", cluster="other"))}, "Invalid cluster.id in: /d2"),
    "duplicate_id": ({"d2": loaded("/d2", meta("/d1"))}, "Duplicate directory ID"),
    "same_directory": ({"d2": replace(loaded("/d2"), real_path="/d1")}, "the same directory"),
    "foreign_directory": ({"d2": replace(loaded("/d2"), unknown_names=("lost+found",))}, "/d2/lost\\+found"),
    "no_worker": ({"d2": WorkerUnavailable("/d2", "no worker could be started")}, "no worker could be started"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_directory_that_contradicts_the_others_is_refused_with_one_line_that_names_it(case: str) -> None:
    loads, text = REFUSED[case]
    with pytest.raises(StorageError, match=text) as refusal:
        start("/d1", "/d2", **loads)
    assert "/d2" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("epochs", "previous"), [((16, 16, 16), 16), ((16, 16, 17), -1), ((16, 16, None), -1), ((None, None, None), -1)]
)
def test_su_13_the_previous_epoch_counts_only_when_all_directories_agree(
    epochs: tuple[int | None, int | None, int | None], previous: int
) -> None:
    loads: dict[str, Load] = {f"d{n}": loaded(f"/d{n}", epoch=epoch) for n, epoch in enumerate(epochs, start=1)}
    assert start("/d1", "/d2", "/d3", **loads).previous_broker_epoch == previous


def test_without_any_log_directory_there_is_no_start_though_the_metadata_directory_is_well() -> None:
    bad = {path: DirectoryError(errno.EIO, "read of meta.properties", path) for path in ("/d2", "/d3")}
    loads: dict[str, Load] = {"/d1": loaded("/d1"), **bad}
    with pytest.raises(StorageError, match=r"none of the log directories can be used.*/d2.*/d3"):
        examine(
            node_id=1,
            log_dirs=("/d2", "/d3"),
            metadata_log_dir="/d1",
            loads=loads,
            remembered=IDS,
            rng=random.Random(1),
        )


def test_su_13_a_directory_that_cannot_be_read_makes_the_last_shutdown_unclean() -> None:
    bad = DirectoryError(errno.EIO, "read", "/d2")
    start_up = start("/d1", "/d2", d1=loaded("/d1", epoch=5), d2=bad)
    assert start_up.previous_broker_epoch == -1


def test_ids_are_remembered_outside_the_disks(tmp_path: Path) -> None:
    state = tmp_path / "new" / "state"
    KnownDirectories(state, 1).load()
    KnownDirectories(state, 1).save(IDS)
    assert KnownDirectories(state, 1).load() == IDS
    assert KnownDirectories(state, 2).load() == {}
    assert json.loads((state / KNOWN_DIRECTORIES_NAME).read_text())["version"] == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version":1,"node_id":1,"directories":{"/d1":"?"}}'])
def test_a_memory_that_is_garbage_is_forgotten_and_not_fatal(tmp_path: Path, content: bytes) -> None:
    (tmp_path / KNOWN_DIRECTORIES_NAME).write_bytes(content)
    assert KnownDirectories(tmp_path, 1).load() == {}


def test_a_state_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartUpError, match=r"kjbod\.state\.dir="):
        KnownDirectories(tmp_path / "file" / "state", 1).load()
