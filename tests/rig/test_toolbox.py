"""Kafka's tools in one Java: to whoever runs one it is as the process that it would be."""

import subprocess

import pytest

from scripts.rig.kafka import FEATURES, STORAGE, KafkaKit
from scripts.rig.toolbox import gateway_jar

pytestmark = [
    pytest.mark.usefixtures("kafka_kit"),
    pytest.mark.skipif(gateway_jar() is None, reason="py4j: not installed: run scripts/setup --fleet"),
]


def without_frames(text: str) -> list[str]:
    """Without where in a stack an exception was thrown, and what the first tool of a process logs."""
    return [line for line in text.splitlines() if not line.startswith(("\t", "["))]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        pytest.param(STORAGE, ["random-uuid", "--help"], id="exits-with-0"),
        pytest.param(FEATURES, ["--bootstrap-server", "127.0.0.1:1", "feature-dependencies"], id="exits-with-1"),
        pytest.param(STORAGE, ["format", "-t", "x", "-c", "/nowhere"], id="exception-that-nobody-catches"),
    ],
)
def test_exit_code_and_streams_are_those_of_a_process(kafka_kit: KafkaKit, tool: str, arguments: list[str]) -> None:
    process = subprocess.run(
        kafka_kit.command(tool, *arguments), capture_output=True, text=True, timeout=120, check=False
    )
    shared = kafka_kit.run(tool, *arguments, check=False)
    assert (shared.returncode, shared.stdout) == (process.returncode, process.stdout)
    assert without_frames(shared.stderr) == without_frames(process.stderr)


def test_tools_share_a_java_and_none_sees_what_another_wrote(kafka_kit: KafkaKit) -> None:
    assert kafka_kit.run(STORAGE, "nope", check=False).returncode == 1
    drawn = [kafka_kit.run(STORAGE, "random-uuid") for _ in range(3)]
    assert [len(each.stdout) for each in drawn] == [23] * 3
    assert len({each.stdout for each in drawn}) == 3
    assert not any(without_frames(each.stderr) for each in drawn)


def test_a_tool_that_takes_too_long_is_ended_and_the_next_one_runs(kafka_kit: KafkaKit) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        kafka_kit.run(FEATURES, "--bootstrap-server", "127.0.0.1:1", "describe", timeout_s=0.2)
    assert kafka_kit.run(STORAGE, "random-uuid").returncode == 0


def test_an_exception_of_kafkas_is_ours_to_see_after_a_spark_session_in_the_same_process(
    kafka_kit: KafkaKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    from py4j import java_gateway, protocol
    from pyspark.errors.exceptions.captured import capture_sql_exception

    monkeypatch.setattr(java_gateway, "get_return_value", capture_sql_exception(protocol.get_return_value))
    with pytest.raises(protocol.Py4JJavaError, match="NumberFormatException"):
        kafka_kit.ask(lambda jvm: jvm.Integer.parseInt("one"))
