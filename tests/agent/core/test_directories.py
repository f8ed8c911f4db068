"""Start-up rules for log directories. Ids are those of kafka-jbod 9.3."""

import errno
import json
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from kjbod.errors import EXIT_CONFIG, ConfigError, StorageError
from kjbod.ids import Uuid
from kjbod.meta_properties import KNOWN_DIRECTORIES_NAME
from kjbod_host.directories.known_directories import KnownDirectories
from kjbod_host.directories.start_up_rules import (
    RETIRED_MAX,
    KnownDirectory,
    Load,
    Memory,
    Retired,
    StartUp,
    StartUpError,
    examine,
    examine_addition,
)
from kjbod_host.storage.api import DirectoryError, DirectoryTimeout, LoadedDirectory, MountIdentity, WorkerUnavailable

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
    return start_with({path: changed.get(path[1:], loaded(path)) for path in paths})


def start_with(loads: Mapping[str, Load], *, take_over: bool = False) -> StartUp:
    """Start with these answers of the directories, by path."""
    return examine(
        node_id=1,
        log_dirs=tuple(loads),
        metadata_log_dir="/d1",
        loads=loads,
        remembered=IDS,
        rng=random.Random(1),
        take_over=take_over,
    )


def used_by_kafka(path: str) -> LoadedDirectory:
    return replace(loaded(path), kafka_trace="recovery-point-offset-checkpoint")


def test_directories_that_a_kafka_broker_has_used_are_refused_and_no_restart_can_help() -> None:
    with pytest.raises(StorageError) as refusal:
        start("/d1", "/d2", "/d3", d2=used_by_kafka("/d2"))
    assert str(refusal.value) == (
        "/d2: an Apache Kafka broker has used this log directory (recovery-point-offset-checkpoint). An agent would "
        "register as that broker. To watch a Kafka broker use kjbod guard run; to replace Kafka on this host give "
        "--take-over or set kjbod.agent.take.over=true"
    )
    assert refusal.value.exit_code == EXIT_CONFIG


def test_a_metadata_directory_apart_that_a_kafka_broker_has_used_is_refused_too() -> None:
    with pytest.raises(StorageError, match=r"^/d1: an Apache Kafka broker has used"):
        start("/d2", "/d1", d1=used_by_kafka("/d1"))


def test_directories_that_a_kafka_broker_has_used_are_taken_over_with_permission() -> None:
    start_up = start_with({path: used_by_kafka(path) for path in ("/d1", "/d2")}, take_over=True)
    assert [directory.path for directory in start_up.log_dirs] == ["/d1", "/d2"]


def test_a_disk_of_another_broker_is_named_as_such_before_anybody_is_told_how_to_take_it_over() -> None:
    foreign = replace(used_by_kafka("/d2"), meta_properties=meta("/d2", node=2))
    with pytest.raises(StorageError, match="Stored node id 2 doesn't match"):
        start("/d1", "/d2", d2=foreign)


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
    "inside_another": (
        {"d2": replace(loaded("/d2"), real_path="/d1/x-2")},
        "log directory /d2 lies in .* /d1 .at /d1/x",
    ),
    "around_another": ({"d1": replace(loaded("/d1"), real_path="/d2/x")}, "log directory /d1 lies in .* /d2"),
    "same_directory": ({"d2": replace(loaded("/d2"), real_path="/d1")}, "the same directory"),
    "same_directory_by_a_link": (
        {"d2": replace(loaded("/d2", meta("/d1")), real_path="/d1")},
        "the same directory /d1",
    ),
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


KNOWN = Memory(
    {
        "/d1": KnownDirectory(IDS["/d1"], "sdb1 8:17", "S123", 1_763_000_000_000),
        "/d2": KnownDirectory(IDS["/d2"], seen_ms=1_763_000_000_000),
    },
    (Retired(Uuid.of(7, 9), "/d1", 1_762_000_000_000, IDS["/d1"]),),
)


def test_what_lies_where_is_remembered_outside_the_disks_with_device_serial_and_what_was_replaced(
    tmp_path: Path,
) -> None:
    state = tmp_path / "new" / "state"
    KnownDirectories(state, 1).load()
    (state / KNOWN_DIRECTORIES_NAME).write_bytes(KnownDirectories(state, 1).content(KNOWN))
    assert KnownDirectories(state, 1).load() == KNOWN
    with pytest.raises(ConfigError, match=r"is what node 1 remembers of its disks: give node 2 a kjbod.state.dir"):
        KnownDirectories(state, 2).load()
    document = json.loads((state / KNOWN_DIRECTORIES_NAME).read_text())
    assert document["version"] == 2
    assert document["directories"]["/d1"]["directory_id"] == str(IDS["/d1"])


def test_the_memory_of_an_agent_before_this_version_is_read(tmp_path: Path) -> None:
    document = {"version": 1, "node_id": 1, "directories": {path: str(known) for path, known in IDS.items()}}
    (tmp_path / KNOWN_DIRECTORIES_NAME).write_text(json.dumps(document))
    assert KnownDirectories(tmp_path, 1).load().ids == IDS


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"version":1,"node_id":1,"directories":{"/d1":"?"}}',
        b'{"version":2,"node_id":1,"directories":{"/d1":"AAAAAAAAAAcAAAAAAAAAAQ"},"retired":[]}',
        b'{"version":2,"node_id":1,"directories":{}}',
        b'{"version":3,"node_id":1,"directories":{},"retired":[]}',
    ],
)
def test_a_memory_that_is_garbage_is_forgotten_and_not_fatal(tmp_path: Path, content: bytes) -> None:
    (tmp_path / KNOWN_DIRECTORIES_NAME).write_bytes(content)
    assert KnownDirectories(tmp_path, 1).load() == Memory()


LAST_READ = {"version": 1, "directories": {"/d1": {"place": {"device": "8:17"}, "survey": {"lock": [8, 17, 4]}}}}


def test_the_part_of_a_guard_is_kept_and_earlier_releases_pass_over_it(tmp_path: Path) -> None:
    known = KnownDirectories(tmp_path, 1)
    content = known.content(KNOWN, LAST_READ)
    assert (known.parse(content), known.last_read(content)) == (KNOWN, LAST_READ)
    document = json.loads(content)
    assert document.pop("last_read") == LAST_READ
    assert json.dumps(document, indent=2).encode() + b"\n" == known.content(KNOWN), "version 2, as of earlier releases"
    assert known.last_read(known.content(KNOWN)) is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it cannot be read: "),
        (b"{", "it cannot be read: "),
        (b"[]", "it cannot be read: "),
        (b"{}", "it cannot be read: "),
        (b"[" * 100_000, "it cannot be read: nested too deep"),
        (b'{"version":3,"last_read":{}}', "it is of version 3"),
        (b'{"version":2,"last_read":7}', "it cannot be read: last_read has another shape"),
        (b'{"version":2,"last_read":"it is of version 3"}', "it cannot be read: last_read has another shape"),
        (
            b'{"version":2,"last_read":' + b'{"a":[' * 200 + b"]}" * 200 + b"}",
            "it cannot be read: last_read has another",
        ),
    ],
)
def test_a_part_of_a_guard_that_cannot_be_used_has_a_reason_and_is_not_written_again(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    known = KnownDirectories(tmp_path, 1)
    part = known.last_read(content)
    assert isinstance(part, str)
    assert part.startswith(reason)
    assert known.content(KNOWN, part) == known.content(KNOWN)


A, B, C = (Uuid.of(8, n) for n in (1, 2, 3))


def test_a_disk_that_another_one_takes_the_place_of_is_retired_and_no_longer_so_when_it_is_back() -> None:
    memory = Memory().seen("/d1", A, 1).seen("/d1", B, 2)
    assert memory.ids == {"/d1": B}
    assert memory.retired == (Retired(A, "/d1", 2, B),)
    assert memory.retired_as(A) is not None and memory.retired_as(B) is None
    back = memory.seen("/d1", A, 3)
    assert back.ids == {"/d1": A} and back.retired == (Retired(B, "/d1", 3, A),)


def test_disks_that_changed_places_are_not_retired() -> None:
    before = Memory().seen("/d1", A, 1).seen("/d2", B, 1)
    after = before.seen("/d1", B, 2).seen("/d2", A, 2)
    assert after.ids == {"/d1": B, "/d2": A} and after.retired == ()


def test_a_directory_seen_again_keeps_its_device_and_another_one_does_not_inherit_it() -> None:
    memory = Memory().seen("/d1", A, 1).on_device("/d1", "sdb1 8:17", "S1", "/d1")
    assert memory.seen("/d1", A, 5).directories["/d1"] == KnownDirectory(A, "sdb1 8:17", "S1", 5, "/d1")
    assert memory.seen("/d1", B, 5).directories["/d1"] == KnownDirectory(B, None, None, 5)


def test_the_memory_of_replaced_disks_is_bounded() -> None:
    memory = Memory()
    for n in range(RETIRED_MAX + 5):
        memory = memory.seen("/d1", Uuid.of(9, n), n)
    assert len(memory.retired) == RETIRED_MAX
    assert memory.retired[-1].directory_id == Uuid.of(9, RETIRED_MAX + 3)


# ------------------------------------------------------------------------------------------------ a directory is added


def add(load: Load, path: str = "/d3", registered: dict[Uuid, int] | None = None) -> Uuid:
    """To an agent with /d1 and /d2."""
    own = {known: IDS[known] for known in ("/d1", "/d2") if known != path}
    addition = examine_addition(
        load,
        path=path,
        metadata_log_dir="/d1",
        node_id=1,
        cluster_id="c",
        own=own,
        real_paths={known: known for known in own},
        registered=registered or {},
        rng=random.Random(1),
    )
    return addition.directory.directory_id


def test_a_formatted_disk_is_added_with_the_id_that_it_has() -> None:
    assert add(loaded("/d3")) == IDS["/d3"]


def test_a_disk_that_was_formatted_before_ids_is_added_with_a_new_one() -> None:
    assert add(loaded("/d3", meta("/d3", with_id=False))) not in IDS.values()


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (DirectoryError(errno.ENOENT, "open of /d3", "/d3"), "does not exist: mount its disk"),
        (replace(loaded("/d3"), meta_properties=None), "is its disk mounted, and have you run `kjbod format`"),
        (DirectoryError(errno.EIO, "read of meta.properties", "/d3"), "unmount the dead disk, mount the new one"),
        (DirectoryTimeout(10_000, "io_schedule", "open of /d3", "/d3"), "unmount the dead disk, mount the new one"),
        (loaded("/d3", b"version=1\nnode.id=what\n"), "cannot be read"),
        (loaded("/d3", meta("/d3", node=2)), "Stored node id 2 doesn't match previous node id 1"),
        (loaded("/d3", meta("/d3", cluster="other")), "Expected c, but read other"),
        (loaded("/d3", b"version=0\n"), "has no node.id and no cluster.id"),
        (loaded("/d3", meta("/d2")), "has the directory.id .* of /d2: mount each disk once"),
        (replace(loaded("/d3"), real_path="/d2"), "are the same directory /d2"),
        (replace(loaded("/d3"), real_path="/d2/e-0"), "log directory /d3 lies in log directory /d2"),
        (replace(loaded("/d3"), real_path="/"), "log directory /d1 lies in log directory /d3"),
        (
            replace(loaded("/d3"), has_cluster_metadata=True),
            "move /d3/__cluster_metadata-0 there, or set metadata.log.dir=/d3",
        ),
        (replace(loaded("/d3"), unknown_names=("lost+found",)), "lost.found, whose name is not of the form"),
        (WorkerUnavailable("/d3", "its worker died"), "its worker died"),
    ],
)
def test_a_directory_that_does_not_fit_is_refused_with_what_to_do(load: Load, said: str) -> None:
    with pytest.raises(StorageError, match=said):
        add(load)


def test_a_disk_of_another_broker_is_refused() -> None:
    with pytest.raises(StorageError, match="which broker 4 has registered"):
        add(loaded("/d3"), registered={IDS["/d3"]: 4})


def test_a_state_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartUpError, match=r"kjbod\.state\.dir="):
        KnownDirectories(tmp_path / "file" / "state", 1).load()


def test_two_paths_of_a_directory_are_a_mistake_that_no_restart_mends() -> None:
    with pytest.raises(StorageError) as refusal:
        start("/d1", "/d2", d2=replace(loaded("/d2", meta("/d1")), real_path="/d1"))
    assert refusal.value.exit_code == EXIT_CONFIG


@pytest.mark.parametrize("around", ["/", "/mnt", "/mnt/jbod"])
def test_a_directory_of_the_metadata_log_alone_may_lie_around_the_others_and_hold_more(around: str) -> None:
    """As a broker of Kafka 4.3.1, which starts so (seen)."""
    inner = ["/mnt/jbod/1", "/mnt/jbod/2"]
    loads: dict[str, Load] = {
        path: replace(loaded(f"/d{n}"), path=path, real_path=path) for n, path in enumerate(inner, 1)
    }
    loads[around] = replace(loaded("/d3"), path=around, real_path=around, unknown_names=("jbod",))
    rng = random.Random(1)
    started = examine(
        node_id=1, log_dirs=inner, metadata_log_dir=around, loads=loads, remembered={}, rng=rng, take_over=True
    )
    assert [one.path for one in started.log_dirs] == inner
    assert started.metadata.path == around
    with pytest.raises(StorageError, match="lies in log directory"):
        examine(node_id=1, log_dirs=[around, *inner], metadata_log_dir=around, loads=loads, remembered={}, rng=rng)
    inside: dict[str, Load] = {"/a": replace(loaded("/d1"), real_path="/a")}
    inside["/a/kraft"] = replace(loaded("/d2"), real_path="/a/kraft")
    with pytest.raises(StorageError, match="lies in log directory"):
        examine(node_id=1, log_dirs=["/a"], metadata_log_dir="/a/kraft", loads=inside, remembered={}, rng=rng)
