"""kjbod's storage commands beside the real kafka-storage 4.3.1: same output, same exit codes, same files."""

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kjbod.metadata.checkpoint_files import read_checkpoint
from scripts.rig.kafka import STORAGE, KafkaKit, broker_properties, controller_properties
from scripts.rig.processes import Processes, free_port
from tests.storage_tool.rig import CLUSTER_ID

pytestmark = pytest.mark.usefixtures("kafka_kit")

VOTER = "3000@127.0.0.1:19093:JEXY6aqzQY-32P5TStzaFg"
Result = tuple[int, list[str], str]
Tool = Callable[..., Result]
Prepare = Callable[[Path], None]

_DATE = re.compile(r"^#[A-Z][a-z]{2} [A-Z][a-z]{2} \d\d \d\d:\d\d:\d\d \S+ \d{4}$", re.MULTILINE)
_DIRECTORY_ID = re.compile(r"directory\.id=[\w-]{22}")
_ANY_DIRECTORY = re.compile(r"\bd[123]\b")
_UNCAUGHT = re.compile(r'^Exception in thread "main" [\w.]+: ')
_STACK_TRACE = re.compile(r"^(java\.|\tat |Caused by: |\t\.\.\. )")


def normalised(text: str) -> str:
    """Without what differs from run to run."""
    return _DATE.sub("#DATE", _DIRECTORY_ID.sub("directory.id=ID", text))


def files_of(root: Path) -> dict[str, object]:
    """What is in each file, without what differs from run to run."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_dir():
            found[name] = "directory"
        elif path.suffix == ".checkpoint":
            checkpoint = read_checkpoint(path)
            voters = [] if checkpoint.voters is None else [(v.voter_id, v.endpoints) for v in checkpoint.voters.voters]
            content = (checkpoint.kraft_version, voters, checkpoint.records)
            found[name] = (path.stat().st_size, oct(path.stat().st_mode), content)
        elif name != "server.properties":
            found[name] = (oct(path.stat().st_mode), normalised(path.read_text()))
    return found


@pytest.fixture
def real(kafka_kit: KafkaKit) -> Tool:
    def run(*arguments: str) -> Result:
        done = kafka_kit.run(STORAGE, *arguments, check=False)
        lines = [line for line in done.stdout.splitlines() if not _STACK_TRACE.match(line)]
        message = next((line for line in reversed(done.stderr.splitlines()) if not _STACK_TRACE.match(line)), "")
        return done.returncode, lines, _UNCAUGHT.sub("", message)

    return run


def _without_remedy(line: str) -> str:
    """Reduce a line about a damaged file to what Kafka says of it: ours adds what to do."""
    found = re.search(r"Unknown meta.properties version number \d+", line)
    return found[0] if found else line


@pytest.fixture
def ours(processes: Processes) -> Tool:
    numbers = iter(range(1000))

    def run(*arguments: str) -> Result:
        done = processes.kjbod(*arguments, name=f"kjbod-{next(numbers)}")
        code = done.wait()
        message = done.stderr().splitlines()[-1:] or [""]
        return code, done.stdout().splitlines(), message[0].removeprefix("kjbod: ")

    return run


def write_config(root: Path, role: str, names: Sequence[str] = ("d1", "d2", "d3")) -> Path:
    path = root / "server.properties"
    if role == "broker":
        path.write_text(broker_properties(1, 19092, 19093, [root / name for name in names]))
    else:
        path.write_text(controller_properties(3000, 19093, root / "meta"))
    return path


def nothing(_root: Path) -> None:
    """Leave it as it is."""


def formatted(*names: str) -> Prepare:
    def prepare(root: Path) -> None:
        for number, name in enumerate(names):
            (root / name).mkdir()
            directory_id = f"GhxzQyTpQzOTfJUbGBnN{number}w"
            (root / name / "meta.properties").write_text(
                f"version=1\nnode.id=1\ncluster.id={CLUSTER_ID}\ndirectory.id={directory_id}\n"
            )

    return prepare


def then(*steps: Prepare) -> Prepare:
    def prepare(root: Path) -> None:
        for step in steps:
            step(root)

    return prepare


def file_at(name: str) -> Prepare:
    return lambda root: (root / name).touch()


def line_in(name: str, line: str) -> Prepare:
    def prepare(root: Path) -> None:
        with open(root / name / "meta.properties", "a") as file:
            file.write(f"{line}\n")

    return prepare


def setting(line: str) -> Prepare:
    def prepare(root: Path) -> None:
        with open(root / "server.properties", "a") as file:
            file.write(f"{line}\n")

    return prepare


ALL = formatted("d1", "d2", "d3")
FORMAT = ("format", "-t", CLUSTER_ID)
AT = (*FORMAT, "-r", "4.3-IV0")
"""Without ``-r`` each tool writes its own newest release, and ours writes none into a broker's directories. The tool of
Kafka 4.4.0 is compared in tests/controller/test_newest_kafka.py."""


@pytest.mark.parametrize(
    ("role", "prepare", "arguments"),
    [
        pytest.param("broker", nothing, AT, id="plain"),
        pytest.param("broker", nothing, (*AT, "-g"), id="ignore-formatted-nothing-formatted"),
        pytest.param("broker", ALL, AT, id="already-formatted"),
        pytest.param("broker", ALL, (*AT, "-g"), id="already-formatted-ignored"),
        pytest.param("broker", formatted("d2"), AT, id="one-formatted"),
        pytest.param("broker", formatted("d2"), (*AT, "-g"), id="one-formatted-ignored"),
        pytest.param("broker", file_at("d2"), AT, id="one-is-a-file"),
        pytest.param("broker", then(*map(file_at, ("d1", "d2", "d3"))), AT, id="all-are-files"),
        pytest.param("broker", then(ALL, line_in("d2", "cluster.id=x")), (*AT, "-g"), id="other-cluster"),
        pytest.param("broker", then(ALL, line_in("d2", "node.id=9")), (*AT, "-g"), id="other-node"),
        pytest.param("broker", then(ALL, line_in("d2", "version=2")), (*AT, "-g"), id="unknown-version"),
        pytest.param("broker", ALL, ("format", "-t", "other", "-g"), id="other-cluster-asked-for"),
        pytest.param("broker", setting("log.dirs=/proc/kjbod-none"), AT, id="cannot-be-made"),
        pytest.param("broker", nothing, (*FORMAT, "-r", "3.9"), id="older-release"),
        pytest.param("broker", nothing, (*FORMAT, "-r", "3.8.1", "-f", "group.version=1"), id="release-and-feature"),
        pytest.param("broker", nothing, (*FORMAT, "-r", "4.5-IV0"), id="unstable-release"),
        pytest.param("broker", nothing, (*FORMAT, "-f", "metadata.version=17"), id="older-metadata-version"),
        pytest.param("broker", nothing, (*FORMAT, "-f", "nope=1"), id="unknown-feature"),
        pytest.param("broker", nothing, (*FORMAT, "-f", "kraft.version=0"), id="kraft-version-too-old"),
        pytest.param("broker", nothing, (*FORMAT, "-s"), id="standalone-broker"),
        pytest.param("broker", nothing, (*AT, "-I", VOTER), id="broker-with-initial-controllers"),
        pytest.param("controller", nothing, FORMAT, id="controller-without-quorum"),
        pytest.param("controller", nothing, (*AT, "--standalone"), id="standalone"),
        pytest.param("controller", setting("listeners=CONTROLLER://:19093"), (*AT, "-s"), id="standalone-no-host"),
        pytest.param("controller", nothing, (*AT, "--no-initial-controllers"), id="no-initial-controllers"),
        pytest.param("controller", nothing, (*AT, "--initial-controllers", VOTER), id="initial-controllers"),
        pytest.param("controller", nothing, (*AT, "-I", VOTER.replace("3000@", "1@")), id="not-a-voter"),
        pytest.param("controller", nothing, (*FORMAT, "-I", "3000@h"), id="voter-without-port"),
        pytest.param("controller", setting("controller.quorum.voters=3000@127.0.0.1:19093"), AT, id="static"),
        pytest.param("broker", nothing, ("info",), id="info-nothing-there"),
        pytest.param("broker", ALL, ("info",), id="info"),
        pytest.param("broker", then(formatted("d1"), file_at("d2")), ("info",), id="info-file-and-missing"),
        pytest.param("broker", then(ALL, line_in("d3", "node.id=9")), ("info",), id="info-other-node"),
        pytest.param("broker", then(ALL, line_in("d1", "version=3")), ("info",), id="info-unknown-version"),
    ],
)
def test_output_exit_code_and_files_are_those_of_kafka_storage(
    tmp_path: Path, real: Tool, ours: Tool, role: str, prepare: Prepare, arguments: tuple[str, ...]
) -> None:
    results = []
    root = tmp_path / "node"
    for tool in (real, ours):
        root.mkdir()
        config = write_config(root, role)
        prepare(root)
        code, lines, message = tool(arguments[0], "-c", str(config), *arguments[1:])
        # The original takes directories in the order of a hash table.
        ordered = sorted(lines) if arguments[0] == "format" else lines
        results.append((code, [*map(normalised, ordered)], message, files_of(root)))
        shutil.rmtree(root)
    (code, lines, message, files), (our_code, our_lines, our_message, our_files) = results
    assert (our_code, [*map(_without_remedy, our_lines)], our_files) == (code, [*map(_without_remedy, lines)], files)
    if code and arguments[0] == "format":
        # Java names an exception's class where we give the system's words.
        text, _, _ = message.partition(": java.nio")
        assert _ANY_DIRECTORY.sub("D", our_message).startswith(_ANY_DIRECTORY.sub("D", text))


@pytest.mark.parametrize(
    "arguments",
    [
        ("version-mapping", "-r", "4.3"),
        ("version-mapping", "-r", "3.7"),
        ("version-mapping", "-r", "4.1-IV1"),
        ("feature-dependencies", "-f", "eligible.leader.replicas.version=1", "-f", "metadata.version=20"),
        ("feature-dependencies", "-f", "nope=1"),
        ("feature-dependencies", "-f", "group.version=7"),
    ],
    ids=" ".join,
)
def test_features_are_told_as_kafka_storage_tells_them(real: Tool, ours: Tool, arguments: tuple[str, ...]) -> None:
    code, lines, message = real(*arguments)
    assert ours(*arguments) == (code, lines, message if code else "")


@pytest.mark.parametrize("arguments", [(), ("info",), ("nope",), ("random-uuid", "x"), ("format", "-s", "-N")])
def test_wrong_arguments_end_with_one_and_say_why_on_stderr(real: Tool, ours: Tool, arguments: tuple[str, ...]) -> None:
    if arguments and arguments[0] != "nope":
        code, lines, message = ours(*arguments)
        assert (code, lines) == (1, [])
        assert message
    assert real(*arguments)[0] == 1


def test_what_kjbod_formats_kafka_accepts_and_the_other_way_round(tmp_path: Path, real: Tool, ours: Tool) -> None:
    config = write_config(tmp_path, "broker")
    for formatter, others in ((real, ours), (ours, real)):
        assert formatter(*FORMAT, "-c", str(config))[0] == 0
        shown = others("info", "-c", str(config))
        assert shown[0] == 0
        assert shown[:2] == formatter("info", "-c", str(config))[:2]
        assert others(*FORMAT, "-c", str(config), "-g")[1] == ["All of the log directories are already formatted."]
        for name in ("d1", "d2", "d3"):
            shutil.rmtree(tmp_path / name)


def test_a_real_controller_and_a_real_broker_start_on_directories_that_kjbod_formatted(
    tmp_path: Path, kafka_kit: KafkaKit, processes: Processes, ours: Tool
) -> None:
    controller_port, broker_port = free_port(), free_port()
    controller_file, broker_file = tmp_path / "controller.properties", tmp_path / "broker.properties"
    controller_file.write_text(controller_properties(3000, controller_port, tmp_path / "meta"))
    names = [tmp_path / name for name in ("d1", "d2")]
    broker_file.write_text(broker_properties(1, broker_port, controller_port, names))
    assert ours(*FORMAT, "-c", str(controller_file), "--standalone")[0] == 0
    assert ours(*FORMAT, "-c", str(broker_file))[0] == 0
    before = [(name / "meta.properties").read_bytes() for name in names]
    kafka_kit.start_server(processes, controller_file, name="controller")
    kafka_kit.start_server(processes, broker_file, name="broker")
    # Nothing was missing in what kjbod wrote: Kafka would have rewritten it.
    assert [(name / "meta.properties").read_bytes() for name in names] == before
