"""What a probe makes of whatever lies in a directory: nothing of anybody's is touched, and nothing stops it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kjbod.faults.disks import RealDisk
from kjbod_host.storage import worker
from tests.agent.storage.here import TOPIC_ID, Here

OWN_FILES = (".kjbod_probe", ".kjbod_known")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    with Here(tmp_path) as made:
        made.format()
        assert made.probe(full=True) == "ok"
        yield made


@pytest.mark.parametrize("name", OWN_FILES)
@pytest.mark.parametrize("kind", ["link", "hard link", "directory", "fifo"])
def test_what_has_the_name_of_a_file_of_the_probe_and_is_none_is_neither_changed_nor_called_a_broken_disk(
    here: Here, tmp_path: Path, name: str, kind: str
) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"x" * 10_000)
    (tmp_path / name).unlink()
    if kind == "link":
        (tmp_path / name).symlink_to(precious)
    elif kind == "hard link":
        (tmp_path / name).hardlink_to(precious)
    elif kind == "directory":
        (tmp_path / name).mkdir()
    else:
        os.mkfifo(tmp_path / name)
    assert f"{name} is in the way" in here.probe()
    assert f"{name} is in the way" in here.probe(full=True)
    assert precious.read_bytes() == b"x" * 10_000


@pytest.mark.parametrize("name", [".kjbod_created.tmp", ".kjbod_known.tmp", ".kjbod_probe.tmp"])
def test_a_link_in_the_place_of_a_temporary_file_is_not_followed(here: Here, tmp_path: Path, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"x")
    for own in OWN_FILES:
        (tmp_path / own).unlink()
    (tmp_path / name).symlink_to(precious)
    assert here.probe(full=True) == "ok"
    assert precious.read_bytes() == b"x"


def test_a_temporary_directory_in_the_way_is_named(here: Here, tmp_path: Path) -> None:
    (tmp_path / ".kjbod_created.tmp").mkdir()
    assert here.probe(full=True) == ".kjbod_created.tmp is in the way: it is a directory; remove it"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "ENOENT at read of meta.properties"),
        (b"", "ESTALE at directory.id in meta.properties"),
        (b"version=1\nnode.id=1\n", "ESTALE at directory.id in meta.properties"),
        (b"directory.id=AAAAAAAAAAAAAAAAAAAAAQ\n", "ESTALE at directory.id in meta.properties"),
        (bytes(100), "EILSEQ at comparison of meta.properties"),
    ],
)
def test_whose_a_directory_is_counts_only_where_the_medium_is_well(
    here: Here, tmp_path: Path, content: bytes | None, said: str
) -> None:
    meta, known = tmp_path / "meta.properties", tmp_path / ".kjbod_known"
    meta.unlink()
    if content is not None:
        meta.write_bytes(content)
    before = (tmp_path / ".kjbod_probe").read_bytes()
    assert here.probe(full=True) == here.probe() == said
    assert (tmp_path / ".kjbod_probe").read_bytes() == before  # nothing is written into what may be another one's
    known.write_bytes(bytes(known.stat().st_size))
    assert "EILSEQ at comparison of " in here.probe()


def test_meta_properties_that_is_a_fifo_does_not_stop_the_worker(here: Here, tmp_path: Path) -> None:
    (tmp_path / "meta.properties").unlink()
    os.mkfifo(tmp_path / "meta.properties")
    assert here.probe() == "ESPIPE at read of meta.properties"


@pytest.mark.parametrize("name", ["meta.properties", "t-0/partition.metadata"])
def test_a_link_to_a_device_is_not_opened_and_one_to_a_file_is_read(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    here.ask("create_replica", name="t-0", topic_id=TOPIC_ID)
    file = tmp_path / name
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert here.probes(3) == ["ok"] * 3
    opened: list[str] = []
    real = os.open
    device = tmp_path / "device"

    def watched(path: str, flags: int, *rest: int, **more: int) -> int:
        fd = real(path, flags, *rest, **more)
        if not flags & os.O_PATH:
            opened.append(os.readlink(f"/proc/self/fd/{fd}"))
        return fd

    monkeypatch.setattr(os, "open", watched)
    os.mkfifo(device)  # which anybody may make, and which is no file either
    file.unlink()
    file.symlink_to(device)
    answers = here.probes(3)
    assert answers == (["ELOOP at read of meta.properties"] if name == "meta.properties" else ["ok"]) * 3
    assert opened and str(device) not in opened


@pytest.mark.parametrize("content", [b"", b"of an earlier version", bytes(worker.KNOWN_BLOCKS * worker.BLOCK - 1)])
def test_a_known_file_of_another_size_is_made_anew_and_is_no_damage(here: Here, tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".kjbod_known").write_bytes(content)
    assert here.probe() == "ok"
    assert here.probe(full=True) == "ok"
    assert (tmp_path / ".kjbod_known").stat().st_size == worker.KNOWN_BLOCKS * worker.BLOCK


def test_damage_to_the_known_file_is_found_within_as_many_probes_as_it_has_blocks(here: Here, tmp_path: Path) -> None:
    known = tmp_path / ".kjbod_known"
    content = bytearray(known.read_bytes())
    content[40 * worker.BLOCK + 7] ^= 1
    known.write_bytes(content)
    answers = here.probes(worker.KNOWN_BLOCKS)
    damage = "EILSEQ at comparison of .kjbod_known block 40"
    assert answers == ["ok"] * answers.index(damage) + [damage] * (worker.KNOWN_BLOCKS - answers.index(damage)), (
        "the next probe, which is to confirm it, meets it again"
    )


def test_files_of_the_probe_that_somebody_removed_are_made_again(here: Here, tmp_path: Path) -> None:
    for name in OWN_FILES:
        (tmp_path / name).unlink()
    assert [here.probe(), here.probe(full=True), here.probe()] == ["ok", "ok", "ok"]
    assert all((tmp_path / name).exists() for name in OWN_FILES)


def test_a_probe_whose_data_are_gone_before_the_next_one_is_damage(here: Here, tmp_path: Path) -> None:
    probe = tmp_path / ".kjbod_probe"
    times = probe.stat()
    probe.write_bytes(bytes(worker.BLOCK))
    os.utime(probe, ns=(times.st_atime_ns, times.st_mtime_ns))  # as the medium itself would change it
    assert here.probe() == "EILSEQ at comparison of .kjbod_probe with the last probe"


@pytest.mark.parametrize("content", [b"", b"from a backup", bytes(worker.BLOCK)])
def test_what_somebody_wrote_into_the_file_of_the_probe_is_no_damage(
    here: Here, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / ".kjbod_probe").write_bytes(content)
    os.utime(tmp_path / ".kjbod_probe", ns=(1, 1))
    assert here.probes(2) == ["ok", "ok"]


def test_two_workers_of_one_role_or_of_two_do_not_take_each_other_for_damage(here: Here, tmp_path: Path) -> None:
    with Here(tmp_path) as second, Here(tmp_path, "guard") as guard:
        for _ in range(worker.KNOWN_BLOCKS + 1):
            assert [one.probe(full=True) for one in (here, second, guard)] == ["ok"] * 3


def test_another_one_that_writes_in_the_middle_of_a_probe_is_named_and_is_no_damage(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival = worker.nonce_block(b"0" * 24, 7)
    monkeypatch.setattr(os, "fsync", lambda fd: (tmp_path / ".kjbod_probe").write_bytes(rival))
    assert "two agents of one role watch this directory" in here.probe()


def test_another_one_that_writes_within_the_grain_of_the_clock_is_no_damage(here: Here, tmp_path: Path) -> None:
    assert here.probe() == "ok"
    probe = tmp_path / ".kjbod_probe"
    times = probe.stat()
    probe.write_bytes(worker.nonce_block(b"0" * 24, 7))
    os.utime(probe, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert here.probes(2) == ["ok", "ok"]


def test_what_was_there_before_the_last_probe_is_damage_whoever_wrote_it(here: Here, tmp_path: Path) -> None:
    probe = tmp_path / ".kjbod_probe"
    another = worker.nonce_block(b"0" * 24, 7)
    probe.write_bytes(another)
    assert here.probe() == "ok"
    times = probe.stat()
    probe.write_bytes(another)
    os.utime(probe, ns=(times.st_atime_ns, times.st_mtime_ns))  # the device has lost the last write
    assert here.probe() == "EILSEQ at comparison of .kjbod_probe with the last probe"


@pytest.mark.parametrize("name", [".kjbod_created", ".kjbod_known", ".kjbod_probe"])
@pytest.mark.parametrize("call", ["rename", "unlink"])
def test_another_one_that_takes_a_temporary_file_away_is_named_and_is_no_broken_disk(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, call: str
) -> None:
    for own in OWN_FILES:
        (tmp_path / own).unlink()
    temporary = tmp_path / f"{name}.tmp"
    if call == "unlink":
        temporary.write_bytes(b"of the other one")
    real = getattr(os, call)

    def late(path: str, *rest: object, **more: object) -> None:
        if path == temporary.name and temporary.exists():
            temporary.unlink() if call == "rename" else temporary.replace(tmp_path / "taken")
        real(path, *rest, **more)

    monkeypatch.setattr(os, call, late)
    assert "two agents of one role watch this directory" in here.probe(full=True)


def test_a_write_that_was_lost_is_damage_also_when_the_file_still_holds_what_another_worker_wrote(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".kjbod_probe").write_bytes(worker.nonce_block(b"0" * 24, 7))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: len(data))
    assert here.probe() == "EILSEQ at comparison of .kjbod_probe"


def test_the_content_of_a_probe_is_known_from_any_other() -> None:
    block = worker.nonce_block(b"0123456789abcdef01234567", 12)
    assert len(block) == worker.BLOCK
    assert worker.token_of(block) == b"0123456789abcdef01234567"
    assert worker.token_of(b"K" + block[1:]) is None
    assert worker.token_of(block[:-1] + b"x") is None
    assert worker.token_of(bytes(worker.BLOCK)) is None
    assert worker.token_of(b"") is None


def test_replicas_that_come_change_and_go_are_no_damage(here: Here, tmp_path: Path) -> None:
    for partition in range(4):
        here.ask("create_replica", name=f"t-{partition}", topic_id=TOPIC_ID)
    assert here.probes(8) == ["ok"] * 8
    (tmp_path / "t-0" / "partition.metadata").write_bytes(b"by hand")
    (tmp_path / "t-1" / "partition.metadata").unlink()
    (tmp_path / "t-2" / "partition.metadata").unlink()
    (tmp_path / "t-2").rmdir()
    (tmp_path / "t-2").write_bytes(b"")
    here.ask("rename_replica", name="t-3", new_name=f"t-3.{'0' * 32}-delete")
    assert here.probes(8) == ["ok"] * 8
    here.ask("delete_replica", name=f"t-3.{'0' * 32}-delete", topic_id=TOPIC_ID)
    assert here.probes(8) == ["ok"] * 8


AS_NOBODY = """
import json, os, sys
from pathlib import Path
from tests.agent.storage.here import Here
with Here(Path(sys.argv[1])) as here:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    if sys.argv[2] == "format":
        here.format()
    for line in sys.stdin:
        print(json.dumps(here.probe(full=line.strip() == "full")), flush=True)
"""


class Nobody:
    """A worker of uid 65534, as the service runs it, in a process of its own."""

    def __init__(self, path: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", AS_NOBODY, str(path), "format"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __enter__(self) -> "Nobody":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate(timeout=60)

    def probe(self, kind: str = "plain") -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(kind + "\n")
        self._process.stdin.flush()
        return str(json.loads(self._process.stdout.readline()))


@pytest.fixture
def disk_of_nobody(real_disk: Callable[..., RealDisk]) -> RealDisk:
    disk = real_disk(log_dir="kafka")
    (disk.directory).chmod(0o711)
    os.chown(disk.log_dir, 65534, 65534)
    return disk


@pytest.mark.usefixtures("as_root")
def test_a_directory_that_may_not_be_entered_or_changed_any_more_answers_eacces(disk_of_nobody: RealDisk) -> None:
    path = disk_of_nobody.log_dir
    with Nobody(path) as nobody:
        assert nobody.probe("full") == "ok"
        path.chmod(0)
        assert nobody.probe() == f"EACCES at open of {path}"
        path.chmod(0o755)
        os.chown(path, 0, 0)
        assert nobody.probe() == "ok"
        assert nobody.probe("full") == "EACCES at create of .kjbod_created.tmp"
        os.chown(path, 65534, 65534)
        (path / "meta.properties").chmod(0)
        assert nobody.probe() == "EACCES at read of meta.properties"


@pytest.mark.usefixtures("as_root")
def test_files_of_a_probe_that_root_made_are_replaced_and_are_no_broken_disk(disk_of_nobody: RealDisk) -> None:
    path = disk_of_nobody.log_dir
    with Nobody(path) as nobody:
        for name in OWN_FILES:
            (path / name).write_bytes(b"made by a first start as root")
            (path / name).chmod(0o600)
        assert [nobody.probe("full"), nobody.probe()] == ["ok", "ok"]
        assert all((path / name).stat().st_uid == 65534 for name in OWN_FILES)
