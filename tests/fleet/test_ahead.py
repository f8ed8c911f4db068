"""What waits is told without Spark, and whatever is in doubt counts as new."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from kjbod.fleet.ahead import Ahead, look_ahead, session_bytes
from kjbod.fleet.command import EXIT_OK, Place, Running
from kjbod.fleet.ingest.checkpoint import OWNER, Run, with_note
from kjbod.fleet.ingest.command import Asked, ingest
from kjbod.fleet.lake.lake import IDENTITY, LIVE
from kjbod.fleet.lake.state import State, to_json
from kjbod.fleet.session import LARGE_INPUT_BYTES, MEDIUM_INPUT_BYTES

NAMES = ("a.jsonl.gz", "b.jsonl.zst", "c.jsonl", "odd %+ü#?.jsonl.gz", "host:1 50%25.jsonl.gz")
AS_SPARK_HAS_THEM = (*NAMES[:3], "odd%20%25+%C3%BC%23%3F.jsonl.gz", "host:1%2050%2525.jsonl.gz")
SETTLED = Ahead(0, 0, True, 0)


class Disk:
    """A lake that has taken two batches of an inbox, and the inbox."""

    def __init__(self, root: Path) -> None:
        self.inbox, self.lake = root / "inbox", root / "lake"
        self.run = Run(f"file:{self.inbox}", "aaaaaaaa-0001", len(NAMES))
        self.checkpoint = self.lake / self.run.checkpoint
        self.log = self.checkpoint / "sources/0"
        for name in NAMES:
            self.put(name)
        for folder in (self.lake / LIVE, self.log, self.checkpoint / "offsets", self.checkpoint / "commits"):
            folder.mkdir(parents=True)
        (self.lake / IDENTITY).write_text('{"lake": 1, "id": "lake-1"}\n')
        (self.checkpoint / OWNER).write_text(
            json.dumps({"lake": "lake-1", "inbox": self.run.inbox, "run": self.run.id})
        )
        for batch, names in enumerate((AS_SPARK_HAS_THEM[:1], AS_SPARK_HAS_THEM[1:])):
            self.logged(f"{batch}", names)
            (self.checkpoint / f"offsets/{batch}").write_text(f'v1\n{{}}\n{{"logOffset":{batch}}}')
            (self.checkpoint / f"commits/{batch}").write_text("v1\n{}")
        self.state()

    def put(self, name: str, folder: str = "samples/date=2026-11-01/hour=03", text: str = "12345678") -> None:
        path = self.inbox / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def logged(self, number: str, names: tuple[str, ...]) -> None:
        uri = f"file://{self.inbox}/samples/date=2026-11-01/hour=03"
        lines = (json.dumps({"path": f"{uri}/{name}", "timestamp": 1, "batchId": 0}) for name in names)
        (self.log / number).write_text("v1\n" + "\n".join(lines))

    def state(self, version: int = 7, taken: int = 1, **more: Any) -> None:
        state = State("lake-1", version, batches={self.run.id: taken}, **more)
        text = to_json(with_note(state, self.run))
        (self.lake / LIVE / f"{version:020d}.json").write_text(text)

    def look(self) -> Ahead | None:
        return look_ahead(str(self.lake), [str(self.inbox)])


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def test_of_a_lake_that_has_taken_all_nothing_waits(disk: Disk) -> None:
    assert disk.look() == SETTLED
    disk.put(".new.jsonl", text="being written")
    disk.put("readme.txt")
    assert look_ahead(f"file:{disk.lake}", [f"file://{disk.inbox}"]) == SETTLED
    disk.state(8, touched={"2026-11-01T03": 8})
    assert disk.look() == Ahead(0, 0, True, 1)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("new.jsonl.gz", "samples/date=2026-11-01/hour=03"),
        ("a.jsonl.gz", "events/date=2026-11-01"),
        ("a.jsonl.gz", "samples/date=2026-11-01/hour=04"),
        ("A.jsonl.gz", "samples/date=2026-11-01/hour=03"),
        ("odd%20%25+%C3%BC%23%3F.jsonl.gz", "samples/date=2026-11-01/hour=03"),
        ("deep.jsonl", "samples/copied/by/hand"),
    ],
)
def test_a_file_that_the_checkpoint_does_not_name_is_new(disk: Disk, name: str, folder: str) -> None:
    disk.put(name, folder, "123")
    assert disk.look() == Ahead(1, 3, True, 0)


def test_the_newest_compact_log_has_all_that_were_before_it(disk: Disk) -> None:
    (disk.log / "0").unlink()
    (disk.log / "1").unlink()
    disk.logged("1.compact", AS_SPARK_HAS_THEM)
    assert disk.look() == SETTLED


DOUBTS: dict[str, Callable[[Disk], object]] = {
    "a batch that Spark has begun": lambda d: (d.checkpoint / "offsets/2").write_text('v1\n{}\n{"logOffset":1}'),
    "a batch that Spark has not marked": lambda d: (d.checkpoint / "commits/1").unlink(),
    "files that Spark has listed for the next batch": lambda d: d.logged("2", ("z.jsonl",)),
    "a lake of an older time": lambda d: d.state(8, taken=0),
    "a log that lacks a part": lambda d: (d.log / "0").unlink(),
    "an offset that is cut short": lambda d: (d.checkpoint / "offsets/1").write_text("v1\n{}\n{"),
    "a log that is cut short": lambda d: (d.log / "1").write_text('v1\n{"path":"file:'),
    "no checkpoint": lambda d: d.checkpoint.rename(d.checkpoint.with_name("run=gone")),
    "a checkpoint of another lake": lambda d: (d.checkpoint / OWNER).write_text('{"lake": "other"}'),
    "a state of another lake": lambda d: (d.lake / IDENTITY).write_text('{"lake": 1, "id": "lake-2"}'),
    "a state that cannot be read": lambda d: (d.lake / LIVE / f"{9:020d}.json").write_text("{"),
    "a link in the inbox": lambda d: (d.inbox / "samples/more").symlink_to(d.lake),
    "a path of another file system": lambda d: (d.log / "1").write_text('v1\n{"path":"hdfs://x/a.jsonl"}'),
}


@pytest.mark.parametrize("doubt", DOUBTS)
def test_what_is_in_doubt_is_left_to_spark(disk: Disk, doubt: str) -> None:
    DOUBTS[doubt](disk)
    found = disk.look()
    assert found is None or not found.is_settled


def test_other_machines_lakes_and_inboxes_are_left_to_spark(disk: Disk) -> None:
    assert look_ahead("s3a://bucket/lake", [str(disk.inbox)]) is None
    assert look_ahead(str(disk.lake), [str(disk.inbox), "hdfs://name/reports"]) is None


def test_a_lake_that_is_not_there_yet_has_all_before_it(disk: Disk, tmp_path: Path) -> None:
    assert look_ahead(str(tmp_path / "none"), [str(disk.inbox)]) == Ahead(len(NAMES), 8 * len(NAMES), False, 0)


def asked(disk: Disk, **more: Any) -> Asked:
    return Asked(str(disk.lake), [str(disk.inbox)], 10, **more)


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []

    def start(_: Running, size: int) -> NoReturn:
        sizes.append(size)
        raise KeyboardInterrupt

    monkeypatch.setattr(Running, "watched_session", start)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    return sizes


def test_where_nothing_waits_spark_is_not_started(
    disk: Disk, no_spark: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ingest(asked(disk, rollup=True), Place()) == EXIT_OK and not no_spark
    assert capsys.readouterr().out.splitlines() == ["nothing new", "nothing to roll up: gold is that of all silver"]
    disk.state(8, touched={"2026-11-01T03": 8})
    assert ingest(asked(disk), Place("local[1]")) == EXIT_OK and not no_spark
    for place, more in (
        (Place(), {"rollup": True}),
        (Place(), {"rescan": True}),
        (Place(), {"every_s": 1.0}),
        (Place(), {"delete_ingested": True}),
        (Place("spark://host:7077"), {}),
        (Place(remote="sc://host:15002"), {}),
    ):
        before = len(no_spark)
        ingest(asked(disk, **more), place)
        assert len(no_spark) == before + 1, (place, more)


def test_a_session_is_set_up_for_what_waits() -> None:
    assert session_bytes(None) > LARGE_INPUT_BYTES
    assert session_bytes(Ahead(3, 5_000, False, 0)) == 5_000
    assert session_bytes(Ahead(3, MEDIUM_INPUT_BYTES + 1, True, 2)) > LARGE_INPUT_BYTES
