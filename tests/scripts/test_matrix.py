"""The matrix of compatibility: what is asked for, what is measured again, how lines are compared, and its page."""

import re
from pathlib import Path

import pytest

from scripts.matrix import __main__ as command
from scripts.matrix import record
from scripts.matrix.differences import DUMP_LOG, LISTED, SHELL, compared
from scripts.matrix.page import page
from scripts.matrix.plan import ACT, AGENT, READ, ROLLING, ROWS, Cell, cells, chosen_rows, chosen_versions
from scripts.matrix.record import FAILED, OK, Outcome
from scripts.rig.kafka import KafkaKit, known_versions
from scripts.rig.rig_error import RigError

KNOWN = ("3.7.2", "3.9.2", "3.10.0", "4.0.2", "4.4.0")


def outcome(row: str, version: str, state: str = OK, **more: object) -> Outcome:
    return Outcome(row, version, state, at="2026-11-28 12:00", kjbod="0.1", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--versions", "3.6.2"], "Apache Kafka 3.6.2: no JBOD in KRaft before 3.7 (KIP-858): choose from "),
        (["--versions", "2.8"], "Apache Kafka 2.8: no JBOD in KRaft before 3.7 (KIP-858): choose from "),
        (["--versions", "4.4.0,4.9.9"], "Apache Kafka 4.9.9: scripts/kafka does not know it: choose from "),
        (["--versions", ""], "Apache Kafka : scripts/kafka does not know it: choose from "),
        (["--versions", "4.4.0 "], "Apache Kafka 4.4.0 : scripts/kafka does not know it: choose from "),
        (["--versions", "../4.4.0"], "Apache Kafka ../4.4.0: scripts/kafka does not know it: choose from "),
        (["--rows", "reads"], "row reads: there is none: choose from read, agent, "),
        (["--rows", "read,"], "row : there is none: choose from read, agent, "),
        (["--rows", "rolling", "--versions", "4.4.0"], "row rolling: it needs two versions of 3.9.2, 4.0.2, "),
    ],
)
def test_a_version_or_row_that_does_not_exist_is_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(f"compatibility: {line}") and said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "place", "line"),
    [
        ("--out", "missing/page.md", "missing/page.md: No such file or directory"),
        ("--out", ".", ": Is a directory"),
        ("--work", "file", "file/cells.jsonl: Not a directory"),
    ],
)
def test_a_place_that_cannot_be_used_is_one_line_before_anything_is_measured(
    option: str, place: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    given = {"--out": str(tmp_path / "page.md"), "--work": str(tmp_path / "work"), option: str(tmp_path / place)}
    assert command.main([word for pair in given.items() for word in pair]) == 1
    said = capsys.readouterr()
    assert said.out == "" and said.err.endswith(f"{line}\n") and said.err.count("\n") == 1


def test_a_jar_that_is_not_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KJBOD_CACHE", str(tmp_path))
    libs = tmp_path / "kafka-3.9.2" / "libs"
    with pytest.raises(RigError, match=f"^Apache Kafka 3.9.2: no jars in {libs}: run scripts/kafka 3.9.2$"):
        KafkaKit.find("3.9.2")
    libs.mkdir(parents=True)
    for jar in (Path("scripts") / "kafka.d" / "3.9.2.sha256").read_text().split()[1::2]:
        (libs / jar).touch()
    (libs / "kafka-tools-3.9.2.jar").unlink()
    line = f"{libs}/kafka-tools-3.9.2.jar: not there: remove {libs}, and run scripts/kafka 3.9.2"
    with pytest.raises(RigError, match=f"^{line}$"):
        KafkaKit.find("3.9.2")


def test_versions_are_numbers_and_a_rolling_upgrade_goes_through_those_asked_for() -> None:
    assert chosen_versions(None, KNOWN) == ["3.7.2", "3.9.2", "3.10.0", "4.0.2", "4.4.0"]
    assert chosen_versions("4.4.0,3.9.2,4.4.0", KNOWN) == ["3.9.2", "4.4.0"]
    assert chosen_rows("rolling,read,read") == [READ, ROLLING]
    planned = list(cells([READ, ROLLING], ["3.9.2", "4.1.2", "4.4.0"]))
    assert planned == [*(Cell(READ, one) for one in ("3.9.2", "4.1.2", "4.4.0")), Cell(ROLLING, "3.9.2 → 4.4.0")]
    assert planned[-1].versions == ["3.9.2", "4.4.0"]
    assert Cell(ROLLING, "4.4.0") not in list(cells([READ, ROLLING], ["4.4.0"]))


def test_a_run_goes_on_where_it_was_ended_and_measures_again_what_failed(tmp_path: Path) -> None:
    file = tmp_path / "work" / "cells.jsonl"
    assert record.read(file) == {}
    for one in (
        outcome(READ, "4.4.0", FAILED, reason="no snapshot"),
        outcome(ACT, "4.4.0", FAILED, reason="no cut"),
        outcome(READ, "4.4.0", absent=["no kafka-shell"]),
    ):
        record.append(file, one)
    known = record.read(file)
    assert known[Cell(READ, "4.4.0")].absent == ["no kafka-shell"]
    planned = [Cell(row, "4.4.0") for row in (READ, AGENT, ACT)]
    assert record.left_to_do(planned, known) == planned[1:]


@pytest.mark.parametrize("line", ["{", "[]", '{"row": "read"}', '{"row": "read", "colour": 1}', "null", ""])
def test_a_record_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "cells.jsonl"
    record.append(file, outcome(READ, "4.4.0"))
    with open(file, "a") as more:
        more.write(f"{line}\n")
    with pytest.raises(record.RecordError, match=r"cells\.jsonl, line 2: no outcome of a cell: remove it"):
        record.read(file)


@pytest.mark.parametrize(
    ("tool", "release", "ours", "theirs"),
    [
        (DUMP_LOG, (3, 7), 'x LeaderChange: {"a":1}\ny', "x controlType: LEADER_CHANGE(2)\ny"),
        (DUMP_LOG, (4, 2), 'n: 1\n| payload: {"a":1}', 'n: 1\n payload: {"a":1}'),
        (SHELL, (3, 8), "acls:\n  byId:\ntopics:\n  byId:", "acls:\ntopics:\n  byId:"),
        (SHELL, (4, 1), "features:", "features:\n  zkMigrationState:\n"),
        (SHELL, (3, 9), "  Optional[3.9-IV0]", "  3.9-IV0\n  zkMigrationState:\n    NONE\n"),
        (SHELL, (4, 2), "directories=[A], cordonedDirectories=null)", "directories=[A])"),
        (SHELL, (4, 3), "  offset 39, epoch 1, time B[UTC]", "  offset 18, epoch 1, time A[UTC]"),
    ],
)
def test_a_listed_difference_is_explained_until_the_release_that_has_it_and_nothing_else_is(
    tool: str, release: tuple[int, int], ours: str, theirs: str
) -> None:
    left, met = compared(tool, release, ours, theirs)
    assert left == [] and met
    assert compared(tool, release, ours, ours) == ([], [])
    assert compared("kafka-storage", release, ours, theirs)[0]
    later = (*release[:1], release[1] + 1) if release != (3, 9) else (4, 0)
    if max(one.until for one in LISTED if one.reason in met) == release:
        assert compared(tool, later, ours, theirs)[0]
    assert compared(tool, release, ours + "\nmore", theirs)[0] == ["+ more"]


def test_the_page_has_a_cell_for_each_outcome_and_a_note_for_what_is_not_there() -> None:
    path = "3.9.2 → 4.4.0"
    found = [
        outcome(READ, "3.9.2", differences=["one line differs"]),
        outcome(READ, "4.4.0", absent=["no kafka-shell"], differences=["one line differs"]),
        outcome(ACT, "4.4.0", FAILED, reason="waited | for <a> cut"),
        outcome(ROLLING, path),
    ]
    text = page({one.cell: one for one in found})
    assert "| | 3.9.2 | 4.4.0 |\n|---|---|---|\n" in text
    assert f"| {ROWS[READ]} | ok <sup>1</sup> | ok <sup>2,1</sup> |" in text
    assert f"| {ROWS[ACT]} | not measured | **failed**: waited \\| for &lt;a> cut |" in text
    assert f"| {ROWS[ROLLING]} | {path} | ok |" in text
    assert "\n1. different: one line differs\n2. not there: no kafka-shell\n" in text
    assert "\n2026-11-28 (UTC), kjbod 0.1.\n" in text


def test_the_page_names_tests_that_exist() -> None:
    named = re.findall(r"`(tests/\S+)`", page({}))
    assert named and all(Path(name).is_file() for name in named)


def test_the_committed_page_has_every_version_and_row_and_the_readme_links_to_it() -> None:
    text = Path("scripts/compatibility.md").read_text()
    head = next(line for line in text.splitlines() if line.startswith("| |"))
    assert [one.strip() for one in head.strip("|").split("|")[1:]] == known_versions()
    assert all(f"| {title} | " in text for title in ROWS.values())
    assert "not measured" not in text
    assert re.search(r"^[-0-9]+( to [-0-9]+)? \(UTC\), kjbod [.0-9]+\.$", text, re.MULTILINE), "no commit"
    assert "scripts/compatibility.md" in Path("README.md").read_text()
