"""``kjbod guard replace``: the runbook as a command, on a host whose guard, mounts and commands are set here."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from kjbod.clock import SystemClock
from kjbod.errors import KjbodError
from kjbod.runtime.control_socket import NoAgentError
from kjbod_guard import replacement, replacing
from kjbod_guard.replacement import Facts, Replacement, Stage
from kjbod_guard.replacing import Replacing
from kjbod_host.health.mounts import Mount

DIR, MOUNT = "/mnt/d3/kafka", "/mnt/d3"
SERIAL = "WD-1234"
PID = 2**22 + 1
"""Of no process: beyond the kernel's largest one."""


def mount(point: str, source: str, number: int) -> Mount:
    return Mount(number, 1, f"8:{number}", "/", point, "ext4", source, frozenset())


class Host:
    """A host with a broker, a guard and a disk, and all commands that were run on it.

    ``refuses`` has commands that end with an error once.
    """

    def __init__(self, **row: Any) -> None:
        self.mounts = [mount("/", "/dev/sda1", 1), mount(MOUNT, "/dev/sdd1", 2)]
        self.ran: list[str] = []
        self.refuses: set[str] = set()
        self.pid: int | None = PID
        self.role, self.mode, self.cluster_id = "guard", "act", "C1"
        self.row = {"path": DIR, "verdict": "failed", "kafka": "offline", "device": "sdd 8:48", "model": "X1"}
        self.row |= {"serial": SERIAL, **row}
        self.evicted, self.out_of_sync = 9, 0
        self.shown = ""

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        if operation == "guard-release":
            self.ran.append(f"release {arguments['path']}")
            return {"held": None}
        if self.pid is not None and self.evicted and self.row["kafka"] == "online":
            self.evicted -= 1  # the guard restores
        return {
            "role": self.role,
            "mode": self.mode,
            "cluster_id": self.cluster_id,
            "broker": {"pid": self.pid},
            "directories": [self.row],
            "metadata_missing": None,
            "fenced": False,
            "evicted": self.evicted,
            "needs": {"out_of_sync": self.out_of_sync},
        }

    def run(self, command: Sequence[str], *, check: bool) -> SimpleNamespace:
        words = [Path(command[0]).name, *command[1:]]
        self.ran.append(" ".join(words))
        if words[0] in self.refuses:
            self.refuses.discard(words[0])
            return SimpleNamespace(returncode=32)
        match words:
            case ["systemctl", "stop", *_]:
                self.pid = None
            case ["systemctl", "start", *_]:
                self.pid = PID + 1
                self.row |= {"verdict": "online", "kafka": "online"}
            case ["umount", *_]:
                self.mounts = self.mounts[:1]
            case ["mount", *_]:
                self.mounts.append(mount(MOUNT, "/dev/sdd1", 3))
        return SimpleNamespace(returncode=0)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Host:
    made = Host()
    fstab = tmp_path / "fstab"
    fstab.write_text(f"# UUID=0 {MOUNT} ext4\nUUID=1 / ext4\nUUID=2 {MOUNT} ext4 defaults 0 2\n")
    monkeypatch.setattr(replacing, "read_mounts", lambda: tuple(made.mounts))
    monkeypatch.setattr(replacing, "fstab_of", lambda point: fstab_of(point, fstab))
    monkeypatch.setattr(replacing, "unit_of", lambda pid: "kafka.service")
    monkeypatch.setattr(replacing, "owner_of", lambda pid: "kafka:kafka")
    monkeypatch.setattr(replacing, "POLL_S", 0)
    monkeypatch.setattr("subprocess.run", made.run)
    return made


fstab_of = replacing.fstab_of


@contextmanager
def terminal(answers: str) -> Iterator[io.BytesIO]:
    with CliRunner().isolation(input=answers) as (out, *_):
        yield out


def config(tmp_path: Path) -> Any:
    given = {"kjbod_state_dir": str(tmp_path), "source": "/etc/kafka/server.properties", "process_roles": ("broker",)}
    return SimpleNamespace(**given, controller_quorum_voters=())


def run(host: Host, tmp_path: Path, answers: str, directory: str = DIR) -> str:
    """Type the command, and the answers, a line each; what the terminal shows."""
    with terminal(answers) as out:
        try:
            Replacing(host, config(tmp_path), ["-c", "F"], SystemClock()).run(directory)  # type: ignore[arg-type]
        finally:
            host.shown = out.getvalue().decode()
    return out.getvalue().decode()


RELEASED = [f"release {DIR}", "systemctl stop --no-block kafka.service", f"umount {MOUNT}"]
MOUNTED = ["systemctl daemon-reload", f"mount {MOUNT}"]
FORMATTED = [
    f"mkdir -p {DIR}",
    "kjbod format -t C1 -c /etc/kafka/server.properties --ignore-formatted",
    f"chown -R kafka:kafka {DIR}",
]
STARTED = ["systemctl start kafka.service"]
TO_THE_DISK = "y\ny\ny\ny\n"


def new_line(tmp_path: Path) -> None:
    """What a person writes into /etc/fstab for the new file system."""
    (tmp_path / "fstab").write_text(f"UUID=3 {MOUNT} ext4 defaults 0 2\n")


def test_a_disk_is_replaced_until_all_replicas_are_in_sync_in_two_sittings(host: Host, tmp_path: Path) -> None:
    with pytest.raises(click.Abort):  # the input ends, as by Ctrl-D
        run(host, tmp_path, f"{TO_THE_DISK}WD-4321\n{SERIAL.lower()}\n\n")
    assert host.ran == RELEASED
    assert "That is not WD-1234" in host.shown
    assert f"/etc/fstab still names UUID=2 for {MOUNT}" in host.shown

    new_line(tmp_path)
    shown = run(host, tmp_path, "\ny\ny\ny\n")
    assert host.ran == [*RELEASED, *MOUNTED, *FORMATTED, *STARTED]
    assert "Replacement of /dev/sdd, X1, serial number WD-1234: goes on." in shown
    assert "replicas of the broker to restore: 1" in shown
    assert shown.splitlines()[-1] == f"{DIR}: replaced. All replicas of the broker are in sync."
    assert not (tmp_path / replacing.FILE_NAME).exists()


def test_work_that_was_done_by_hand_in_another_terminal_counts(host: Host, tmp_path: Path) -> None:
    with pytest.raises(click.Abort):
        run(host, tmp_path, "y\ny\n")
    host.pid, host.mounts = None, host.mounts[:1]
    with pytest.raises(click.Abort):
        run(host, tmp_path, f"{SERIAL}\n")
    host.mounts.append(mount(MOUNT, "/dev/sde1", 4))
    run(host, tmp_path, "y\ny\n")
    assert host.ran == [f"release {DIR}", *FORMATTED, *STARTED]


def test_a_repaired_disk_that_stays_is_not_formatted(host: Host, tmp_path: Path) -> None:
    shown = run(host, tmp_path, f"{TO_THE_DISK}same\n\ny\ny\n")
    assert host.ran == [*RELEASED, *MOUNTED, *STARTED]
    assert "Repair the file system: fsck.ext4 -f /dev/sdd1" in shown


@pytest.mark.parametrize("command", ["umount", "mount", "mkdir", "chown"])
def test_a_command_that_fails_is_offered_again_and_nothing_after_it_is_done(
    host: Host, tmp_path: Path, command: str
) -> None:
    host.refuses = {command}
    new_line(tmp_path)  # before the beginning, so that it is not the line of the old one
    (tmp_path / "fstab").write_text(f"LABEL=d3 {MOUNT} ext4\n")
    shown = run(host, tmp_path, f"{TO_THE_DISK}{'y' if command == 'umount' else ''}\n{SERIAL}\n\ny\ny\ny\ny\n")
    assert "exit code 32" in shown
    failed = [number for number, line in enumerate(host.ran) if line.startswith(f"{command} ")]
    assert len(failed) == 2
    assert f"{DIR}: replaced" in shown


def test_a_disk_that_is_gone_again_is_not_made_a_directory_of_the_root_file_system(host: Host, tmp_path: Path) -> None:
    (tmp_path / "fstab").write_text(f"LABEL=d3 {MOUNT} ext4\n")
    with pytest.raises(click.Abort):
        run(host, tmp_path, f"{TO_THE_DISK}{SERIAL}\n\ny\n")
    host.mounts = host.mounts[:1]
    with pytest.raises(click.Abort):
        run(host, tmp_path, "y\n")
    assert f"no file system is mounted at {MOUNT}: mount it first" in host.shown
    assert host.ran == [*RELEASED, *MOUNTED]


def test_a_broker_that_its_unit_has_started_again_is_stopped_before_the_disk_is_formatted(
    host: Host, tmp_path: Path
) -> None:
    (tmp_path / "fstab").write_text(f"LABEL=d3 {MOUNT} ext4\n")
    with pytest.raises(click.Abort):
        run(host, tmp_path, f"{TO_THE_DISK}{SERIAL}\n\ny\n")
    host.pid = PID + 1
    with pytest.raises(click.Abort):
        run(host, tmp_path, "y\n")
    assert "stop the broker first" in host.shown
    assert host.ran == [*RELEASED, *MOUNTED]


def test_a_guard_that_observes_holds_nothing_and_releases_nothing(host: Host, tmp_path: Path) -> None:
    host.mode, host.evicted = "observe", 0
    (tmp_path / "fstab").write_text(f"LABEL=d3 {MOUNT} ext4\n")
    run(host, tmp_path, f"y\ny\ny\n{SERIAL}\n\ny\ny\ny\n")
    assert host.ran == [*RELEASED[1:], *MOUNTED, *FORMATTED, *STARTED]


def test_a_dry_run_prints_all_steps_and_does_nothing(host: Host, tmp_path: Path) -> None:
    with terminal("") as out:
        Replacing(host, config(tmp_path), ["-c", "F"], SystemClock()).show(DIR)  # type: ignore[arg-type]
    shown = out.getvalue().decode()
    assert [line[:5] for line in shown.splitlines() if line.startswith("[")] == [
        f"[{number}/9]" for number in range(1, 10)
    ]
    assert f"  $ kjbod guard release -c F {DIR}" in shown
    assert "Take out /dev/sdd, X1, serial number WD-1234" in shown
    assert (host.ran, list(tmp_path.glob("*.json"))) == ([], [])


def test_nothing_begins_without_a_yes(host: Host, tmp_path: Path) -> None:
    for answers in ("\n", "n\n", ""):
        with pytest.raises(click.Abort):
            run(host, tmp_path, answers)
    assert (host.ran, list(tmp_path.glob("*.json"))) == ([], [])


def test_a_healthy_disk_is_called_healthy_before_the_question(host: Host, tmp_path: Path) -> None:
    host.row |= {"verdict": "online", "kafka": "online"}
    with pytest.raises(click.Abort):
        run(host, tmp_path, "n\n")
    assert f"{DIR} is online, and Kafka uses it." in host.shown


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"{", "remove the file to begin anew"),
        (b"[]", "remove the file to begin anew"),
        (b"", "remove the file to begin anew"),
        (b"\x00\xff", "remove the file to begin anew"),
        (None, "version 2, and this kjbod knows 1"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_kept(
    host: Host, tmp_path: Path, content: bytes | None, line: str
) -> None:
    file = tmp_path / replacing.FILE_NAME
    file.write_bytes(content if content is not None else replacement.encode(replace(BEGUN, version=2)))
    before = file.read_bytes()
    with pytest.raises(KjbodError, match=line) as error:
        run(host, tmp_path, TO_THE_DISK)
    assert str(file) in str(error.value)
    assert (file.read_bytes(), host.ran) == (before, [])


def test_another_directory_waits_until_the_first_one_is_complete(host: Host, tmp_path: Path) -> None:
    with pytest.raises(click.Abort):
        run(host, tmp_path, "y\ny\n")
    with pytest.raises(KjbodError, match=f"the replacement of {DIR} is not complete"):
        run(host, tmp_path, "y\n", "/mnt/d4/kafka")


def test_words_that_nobody_knows_are_asked_for(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host.cluster_id = ""
    monkeypatch.setattr(replacing, "owner_of", lambda pid: None)
    (tmp_path / "fstab").write_text(f"LABEL=d3 {MOUNT} ext4\n")
    run(host, tmp_path, f"{TO_THE_DISK}{SERIAL}\n\ny\ny\nC7\nk:g\ny\n")
    assert host.ran[-3:-1] == [
        "kjbod format -t C7 -c /etc/kafka/server.properties --ignore-formatted",
        f"chown -R k:g {DIR}",
    ]


def test_an_agent_that_answers_is_named(host: Host, tmp_path: Path) -> None:
    host.role = "agent"
    with pytest.raises(KjbodError, match="an agent answers here"):
        run(host, tmp_path, "y\n")


def test_two_terminals_do_not_replace_at_once(host: Host, tmp_path: Path) -> None:
    first = Replacing(host, config(tmp_path), [], SystemClock())  # type: ignore[arg-type]
    with first._alone(), pytest.raises(KjbodError, match="runs in another terminal"):
        run(host, tmp_path, "y\n")


@pytest.mark.parametrize(
    ("mounts", "line"),
    [((), "has no mount point of its own"), (("/mnt",), None), ((MOUNT, DIR), None), (("/mnt/d",), "no mount point")],
)
def test_a_directory_on_the_root_file_system_has_no_disk_to_replace(
    host: Host, tmp_path: Path, mounts: tuple[str, ...], line: str | None
) -> None:
    host.mounts = [mount("/", "/dev/sda1", 1), *(mount(one, "/dev/sdd1", 9) for one in mounts)]
    with pytest.raises(click.Abort if line is None else KjbodError, match=line):
        run(host, tmp_path, "n\n")


def test_a_path_that_is_no_log_directory_is_refused_with_those_that_are(host: Host, tmp_path: Path) -> None:
    with pytest.raises(KjbodError, match=f"/mnt/d9 is no log directory of this broker: give {DIR}"):
        run(host, tmp_path, "y\n", "/mnt/d9")


def test_a_guard_that_does_not_answer_while_the_broker_starts_is_named(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / replacing.FILE_NAME
    file.write_bytes(replacement.encode(replace(BEGUN, stage=Stage.SYNC)))
    answers = [NoAgentError("no guard answers: start it"), None]

    def call(operation: str) -> dict[str, Any]:
        if (error := answers.pop(0) if answers else None) is not None:
            raise error
        return Host.call(host, operation)

    monkeypatch.setattr(host, "call", call)
    host.row |= {"verdict": "online", "kafka": "online"}
    answers.insert(0, NoAgentError("no guard answers: start it"))
    assert "no guard answers: start it" in run(host, tmp_path, "")


BEGUN = Replacement(
    version=replacement.VERSION,
    paths=(DIR,),
    mount_point=MOUNT,
    source="/dev/sdd1",
    fstype="ext4",
    device="/dev/sdd",
    model=None,
    serial=None,
    fstab=None,
    cluster_id="C1",
    pid=None,
    unit=None,
    owner=None,
)


def test_without_unit_fstab_and_owner_a_person_does_the_work_and_the_command_waits() -> None:
    for stage in (Stage.STOP, Stage.MOUNT, Stage.START):
        now = replace(BEGUN, stage=stage)
        assert replacement.commands(now, [], "F", dynamic=False) == []
        assert "in another terminal" in replacement.text(now)[0]
    assert replacement.commands(replace(BEGUN, stage=Stage.FORMAT), [], "F", dynamic=True)[1:] == [
        ("kjbod", "format", "-t", "C1", "-c", "F", "--ignore-formatted", "--no-initial-controllers"),
        ("chown", "-R", "USER:GROUP", DIR),
    ]


def test_a_disk_without_a_serial_number_is_repeated_by_its_device() -> None:
    now = replace(BEGUN, stage=Stage.SWAP)
    assert replacement.swapped(now, "") is None
    assert replacement.swapped(now, "sdd") is None
    assert replacement.swapped(now, " /dev/sdd ") == replace(now, stage=Stage.PREPARE, is_same=False)


def test_no_facts_alone_pass_the_disk_in_a_hand() -> None:
    for runs in (False, True):
        for is_mounted in (False, True):
            facts = Facts(runs, runs, is_mounted, None)
            assert not replacement.is_over(replace(BEGUN, stage=Stage.SWAP), facts)
            assert not replacement.is_over(replace(BEGUN, stage=Stage.RELEASE), facts)


def test_a_replacement_is_read_as_it_was_written() -> None:
    for stage in Stage:
        now = replace(BEGUN, stage=stage, is_same=stage is Stage.SYNC, serial="S", unit="kafka@a.service")
        assert replacement.decode(replacement.encode(now)) == now


def test_unit_and_owner_are_those_of_the_process(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    for content, unit in (
        ("0::/system.slice/kafka.service\n", "kafka.service"),
        ("0::/system.slice/system-kafka.slice/kafka@a.service/sub\n", "kafka@a.service"),
        ("12:pids:/a\n1:name=systemd:/system.slice/k.service\n", "k.service"),
        ("0::/user.slice/user-0.slice/user@0.service/app.slice/run-1.scope\n", None),
        ("0::/\n", None),
    ):
        (tmp_path / "7" / "cgroup").write_text(content)
        assert replacing.unit_of(7, tmp_path) == unit
    assert replacing.unit_of(8, tmp_path) is None
    assert replacing.owner_of(8, tmp_path) is None
    assert ":" in (replacing.owner_of(7, tmp_path) or "")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", None),
        ("UUID=1 /mnt/a\\040b ext4\n", "UUID=1"),
        ("  # UUID=1 /mnt/a\\040b ext4\n/dev/x /mnt/a\\040b ext4\n", "/dev/x"),
        ("UUID=1\n\nLABEL=q\t/mnt/a\\040b xfs\n", "LABEL=q"),
        ("UUID=1 /mnt/a ext4\n", None),
    ],
)
def test_the_line_of_fstab_is_that_of_the_mount_point(tmp_path: Path, text: str, found: str | None) -> None:
    (tmp_path / "fstab").write_text(text)
    assert fstab_of("/mnt/a b", tmp_path / "fstab") == found
