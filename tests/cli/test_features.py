"""``kjbod features`` on a running controller, beside ``kafka-features`` of the newest Kafka."""

import itertools
import re
from pathlib import Path

import pytest

from kjbod.cli.features import refusals
from kjbod.cli.main import run
from kjbod.wire.admin_messages import UpdateFeaturesResponse, UpdateFeaturesResponseUpdatableFeature
from scripts.rig.cluster import Cluster
from scripts.rig.kafka import FEATURES, KafkaKit
from scripts.rig.processes import Processes

_NUMBERS = itertools.count()


@pytest.fixture
def server(tmp_path: Path, processes: Processes) -> str:
    """The address of a controller at 4.0-IV3 under Kafka's rules."""
    properties = {"kjbod.controller.rules": "kafka", "metadata.max.idle.interval.ms": 0}
    cluster = Cluster(tmp_path, processes, properties=properties)
    cluster.format_controller(release="4.0-IV3")
    cluster.start_controller()
    return f"127.0.0.1:{cluster.port}"


def ours(processes: Processes, command: str, server: str, *arguments: str) -> tuple[int, list[str]]:
    """Exit code and the lines of standard output."""
    name = f"features-{next(_NUMBERS)}"
    done = processes.kjbod("features", command, "--bootstrap-controller", server, *arguments, name=name)
    return done.wait(), done.stdout().splitlines()


def test_what_would_be_lost_is_named_before_kafka_refuses(server: str, processes: Processes) -> None:
    code, lines = ours(processes, "downgrade", server, "--release-version", "3.6", "--unsafe", "--dry-run")
    assert code == 1
    assert lines[0] == "would be lost: 1 registration of controllers"
    assert lines[1].startswith("Can not downgrade")


def test_an_upgrade_is_there_for_everybody_at_once(server: str, processes: Processes) -> None:
    assert ours(processes, "upgrade", server, "--feature", "metadata.version=30", "--dry-run") == (
        0,
        ["metadata.version can be upgraded to 30."],
    )
    assert ours(processes, "upgrade", server, "--feature", "metadata.version=30") == (
        0,
        ["metadata.version was upgraded to 30."],
    )
    code, lines = ours(processes, "describe", server)
    assert code == 0
    assert any("metadata.version" in line and "FinalizedVersionLevel: 4.3-IV0" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("upgrade",), "You must specify at least one feature to upgrade"),
        (("upgrade", "--feature", "a"), "Can't parse feature=level string a: equals sign not found."),
        (("upgrade", "--feature", "a=1", "--feature", "a=2"), "Feature a was specified more than once."),
        (
            ("downgrade", "--release-version", "4.0", "--feature", "a=1"),
            "Can not specify `release-version` with other feature flags.",
        ),
    ],
)
def test_wrong_arguments_are_one_line(arguments: tuple[str, ...], message: str, processes: Processes) -> None:
    command, *rest = arguments
    done = processes.kjbod("features", command, "--bootstrap-server", "127.0.0.1:1", *rest, name="features")
    assert done.wait() == 1
    assert done.stderr().splitlines() == [f"kjbod: {message}"]


@pytest.mark.parametrize(
    "arguments",
    [(), ("--bootstrap-server", "127.0.0.1:1"), ("--nothing",), ("nothing",), ("--nothing", "describe"), ("describe",)],
)
def test_wrong_arguments_end_with_the_exit_code_of_kafka_features(arguments: tuple[str, ...]) -> None:
    assert run(["features", *arguments]) == 1


@pytest.mark.parametrize("command", ["describe", "upgrade", "downgrade", "disable"])
def test_the_server_comes_before_the_command_as_in_kafka_features(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    levels = [] if command == "describe" else ["--feature", "a" if command == "disable" else "a=1"]
    assert run(["features", "--bootstrap-server", "127.0.0.1:1", command, *levels]) == 1
    assert capsys.readouterr().err == "kjbod: cannot connect to 127.0.0.1:1: Connection refused\n"


def test_tables_need_no_server_and_take_one(capsys: pytest.CaptureFixture[str]) -> None:
    for server in ((), ("--bootstrap-controller", "127.0.0.1:1")):
        assert run(["features", *server, "version-mapping", "--release-version", "4.4"]) == 0
        assert capsys.readouterr().out.startswith("metadata.version=33 (4.4)\n")
        assert run(["features", *server, "feature-dependencies", "--feature", "group.version=1"]) == 0
        assert capsys.readouterr().out == "group.version=1 has no dependencies.\n"


def answer_of(**codes: int) -> UpdateFeaturesResponse:
    """An answer of Kafka before 4.0: an error code for each feature."""
    each = (UpdateFeaturesResponseUpdatableFeature(feature=name, error_code=code) for name, code in codes.items())
    return UpdateFeaturesResponse(results=tuple(each))


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        (UpdateFeaturesResponse(), {}),
        (UpdateFeaturesResponse(error_code=95), {"a": "INVALID_UPDATE_VERSION", "b": "INVALID_UPDATE_VERSION"}),
        (UpdateFeaturesResponse(error_code=95, error_message="no"), {"a": "no", "b": "no"}),
        (answer_of(a=0, b=0), {}),
        (answer_of(a=95, b=0), {"a": "INVALID_UPDATE_VERSION"}),
        (answer_of(a=95, b=96), {"a": "INVALID_UPDATE_VERSION", "b": "FEATURE_UPDATE_FAILED"}),
        (answer_of(a=0), {"b": "The server did not answer for this feature."}),
        (answer_of(a=0, b=0, c=95), {}),
    ],
)
def test_each_refusal_is_seen_also_of_kafka_before_4_0(answer: UpdateFeaturesResponse, refused: dict[str, str]) -> None:
    assert refusals(answer, ["a", "b"]) == refused


def plain(text: str) -> list[str]:
    """The lines, with runs of blanks and the epoch left out: the original's columns differ from version to version."""
    return [re.sub(r"Epoch: \d+", "", re.sub(r"\s+", " ", line)).strip() for line in text.splitlines()]


@pytest.mark.usefixtures("newest_kit")
def test_the_lines_are_those_of_kafka_features(server: str, processes: Processes, newest_kit: KafkaKit) -> None:
    for command, *arguments in (
        ("describe",),
        ("upgrade", "--feature", "group.version=9"),
        ("downgrade", "--feature", "streams.version=0", "--feature", "group.version=0", "--dry-run"),
    ):
        theirs = newest_kit.run(FEATURES, "--bootstrap-controller", server, command, *arguments, check=False)
        code, lines = ours(processes, command, server, *arguments)
        assert (code, plain("\n".join(lines))) == (theirs.returncode, plain(theirs.stdout)), command
