"""The metadata shell: what its tree looks like, and what its commands say."""

from collections.abc import Iterable

import pytest

from kjbod.metadata.image import image_of
from kjbod.metadata.shell import COMMANDS, Shell
from kjbod.metadata.tree import Provenance, java_double, tree_of
from tests.metadata.rich_image import TOPIC_ID, WALL_MS, rich_records


def shell_of(*, secrets: bool = False, width: int | None = None) -> Shell:
    image = image_of(rich_records(), offset=99, epoch=2)
    tree = tree_of(image, Provenance(99, 2, WALL_MS), secrets=secrets)
    return Shell(lambda: tree, width=lambda: width)


def said(shell: Shell, text: str) -> list[str]:
    """What a line that was entered prints; complaints begin with an exclamation mark."""
    return [("! " if line.error else "") + line.text for line in shell.enter(text)]


def test_the_tree_has_all_that_metadata_can_have() -> None:
    shell = shell_of()
    assert said(shell, "ls") == ["image", "local"]
    assert said(shell, "ls /image") == [
        "acls", "clientQuotas", "cluster", "configs", "delegationToken", "features", "producerIds", "provenance",
        "scram", "topics",
    ]  # fmt: skip
    assert said(shell, "cat /image/provenance") == ["offset 99, epoch 2, time 2026-11-20T18:36:57.816Z[UTC]"]
    assert said(shell, "ls /image/configs") == ["BROKER", "BROKER:1", "CLIENT_METRICS:m", "GROUP:g", "TOPIC:t"]
    assert said(shell, "cat /image/features/metadataVersion") == ["Optional[4.3-IV0]"]
    assert said(shell, "cat /image/producerIds/nextProducerId") == ["2000"]


def test_a_topic_is_found_by_name_and_by_id() -> None:
    shell = shell_of()
    by_name = said(shell, "cat /image/topics/byName/t/0")
    assert by_name == said(shell, f"cat /image/topics/byId/{TOPIC_ID}/0")
    assert "directories=[AAAAAAAAAAEAAAAAAAAAyQ, AAAAAAAAAAAAAAAAAAAAAQ]" in by_name[0]
    assert "leaderRecoveryState=RECOVERING" in by_name[0]
    assert said(shell, "ls /image/topics/byName/t") == ["0", "id", "name"]
    for nothing in ("byName/t/00", "byName/t/-0", "byName/t/1", "byName/u", "byId/nonsense", "byName/t/0/x"):
        assert said(shell, f"cat /image/topics/{nothing}") == [
            f"! cat: /image/topics/{nothing}: No such file or directory."
        ]


def test_secrets_are_shown_only_when_asked_for() -> None:
    hidden = said(shell_of(), "cat /image/scram/SCRAM-SHA-256/u /image/delegationToken/tok")
    assert hidden[0] == (
        "ScramCredentialData(salt=[redacted], storedKey=[redacted], serverKey=[redacted], iterations=[redacted])"
    )
    assert "tokenId=[redacted]" in hidden[1]
    shown = said(shell_of(secrets=True), "cat /image/scram/SCRAM-SHA-256/u")
    assert shown == ["ScramCredentialData(salt=01ff, storedKey=6162, serverKey=6364, iterations=4096)"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"), (1.0, "1.0"), (12.5, "12.5"), (1e6, "1000000.0"), (9_999_999.5, "9999999.5"), (1e7, "1.0E7"),
        (1.5e7, "1.5E7"), (123_456_789.125, "1.23456789125E8"), (1e20, "1.0E20"), (0.001, "0.001"), (1e-4, "1.0E-4"),
        (-2.5e-5, "-2.5E-5"), (5e-324, "4.9E-324"), (1e308, "1.0E308"), (1.23e-7, "1.23E-7"),
        (1.7976931348623157e308, "1.7976931348623157E308"), (float("inf"), "Infinity"), (float("nan"), "NaN"),
    ],
)  # fmt: skip
def test_limits_read_as_java_prints_them(value: float, text: str) -> None:
    assert java_double(value) == text


def test_paths_are_relative_to_the_working_directory() -> None:
    shell = shell_of()
    assert said(shell, "cd image/topics") == []
    assert said(shell, "pwd") == ["/image/topics"]
    assert said(shell, "cat byName/t/name ../provenance ./byName/t/../t/name") == [
        "t", "offset 99, epoch 2, time 2026-11-20T18:36:57.816Z[UTC]", "t",
    ]  # fmt: skip
    assert said(shell, "cd /image/../../..") == []
    assert said(shell, "pwd") == ["/"]
    assert said(shell, "cd nowhere") == ["! cd: nowhere: no such directory."]
    assert said(shell, "cd /image/provenance") == ["! cd: /image/provenance: not a directory."]
    assert said(shell, "pwd") == ["/"]


def test_globs_name_every_node_that_matches() -> None:
    shell = shell_of()
    assert said(shell, "cat /image/t*/byName/?/{id,name}") == [str(TOPIC_ID), "t"]
    assert said(shell, "find /image/scram/*") == [
        "/image/scram/SCRAM-SHA-256", "/image/scram/SCRAM-SHA-256/u", "/image/scram/SCRAM-SHA-512",
    ]  # fmt: skip
    assert said(shell, "ls /image/x*") == ["! ls: /image/x*: no such file or directory."]
    assert said(shell, "cat '/image/clientQuotas/clientId(c)_user(a*/producer_byte_rate'") == ["1.5E7"]


def test_commands_say_what_is_missing_and_what_is_a_directory() -> None:
    shell = shell_of()
    assert said(shell, "cat /image /nope") == [
        "! cat: /image: Is a directory", "! cat: /nope: No such file or directory.",
    ]  # fmt: skip
    assert said(shell, "find /nope") == ["! find: /nope: no such file or directory."]
    assert said(shell, "tree /nope") == ["! tree: /nope: No such file or directory."]
    assert said(shell, "man nope") == ["! man: unknown command nope. Type help to get a list of commands."]
    assert said(shell, "cat")[0].startswith("! cat: too few arguments")
    assert said(shell, "pwd x")[0].startswith("! pwd: too many arguments")
    assert said(shell, "rm /image")[0].startswith("! invalid choice: 'rm' (choose from 'cat', 'cd',")
    assert said(shell, "cat 'unfinished") == ["! cannot read the line: no closing quotation"]
    assert said(shell, "   ") == []


def test_find_and_tree_show_everything_below() -> None:
    shell = shell_of()
    assert said(shell, "find /image/features") == [
        "/image/features", "/image/features/finalized_group.version", "/image/features/metadataVersion",
    ]  # fmt: skip
    said(shell, "cd /image/features")
    assert said(shell, "find") == [".", "./finalized_group.version", "./metadataVersion"]
    assert said(shell, "tree") == ["finalized_group.version:", "  1", "metadataVersion:", "  Optional[4.3-IV0]"]
    assert said(shell, "tree metadataVersion") == ["Optional[4.3-IV0]"]


def test_several_directories_are_listed_one_after_the_other() -> None:
    shell = shell_of()
    assert said(shell, "ls /image/provenance /image/acls /image/scram") == [
        "provenance", "", "acls:", "byId", "", "scram:", "SCRAM-SHA-256", "SCRAM-SHA-512",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [1, 20, 40, 80, 200])
def test_names_fill_the_width_of_a_terminal_and_no_more(width: int) -> None:
    names = said(shell_of(), "ls /image")
    lines = said(shell_of(width=width), "ls /image")
    longest = max(map(len, names))
    assert all(len(line) <= max(width, longest) for line in lines)
    rows = len(lines)
    columns = [line.split() for line in lines]
    assert [columns[i % rows][i // rows] for i in range(len(names))] == names
    assert width < 80 or rows < len(names)


def test_history_has_what_was_entered() -> None:
    shell = shell_of()
    for text in ("pwd", "", "ls  /local"):
        list(shell.enter(text))
    assert said(shell, "history") == ["    0  pwd", "    1  ls  /local", "    2  history"]
    assert said(shell, "history 1") == ["    3  history 1"]
    assert said(shell, "history x") == ["! history: x: not a number."]


def test_every_command_has_a_page_and_is_in_help() -> None:
    shell = shell_of()
    listed = "\n".join(said(shell, "help"))
    for name, command in COMMANDS.items():
        assert command.usage in listed
        assert said(shell, f"man {name}")[-1] == f"usage: {command.usage}"


def test_exit_ends_the_shell() -> None:
    shell = shell_of()
    assert not shell.done
    assert said(shell, "exit") == []
    assert shell.done


@pytest.mark.parametrize(
    ("text", "candidates"),
    [
        ("c", ["cat", "cd"]),
        ("man t", ["tree"]),
        ("cat /image/p", ["/image/producerIds/", "/image/provenance"]),
        ("ls /image/topics/", ["/image/topics/byId/", "/image/topics/byName/"]),
        ("ls i", ["image/"]),
        ("ls /image ../image/sc", ["../image/scram/"]),
        ("cat /nowhere/x", []),
        ("pwd x", []),
        ("unknown x", []),
    ],
)
def test_completion_offers_what_can_follow(text: str, candidates: Iterable[str]) -> None:
    assert shell_of().complete(text) == list(candidates)
