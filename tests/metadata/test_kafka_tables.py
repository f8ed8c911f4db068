"""kjbod's tables of levels, records, features, API keys and error codes are those of Kafka's jars."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from kjbod.metadata import versions
from kjbod.metadata.records import (
    RECORD_TYPES,
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    RegisterControllerRecord,
)
from kjbod.wire import admin_messages  # noqa: F401  # they are in the table of APIs once it is imported
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import API
from scripts.rig.kafka import cache_directory

ROOT = Path(__file__).parents[2]
TABLES = sorted((ROOT / "scripts" / "kafka.d").glob("*.tables"), key=lambda path: [*map(int, path.stem.split("."))])
NEWEST = TABLES[-1]


def facts(path: Path, kind: str) -> list[list[str]]:
    return [line.split(" ")[1:] for line in path.read_text().splitlines() if line.startswith(f"{kind} ")]


@pytest.fixture(params=TABLES, ids=lambda path: path.stem)
def table(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_levels_have_the_names_of_each_version_and_say_where_metadata_changed(table: Path) -> None:
    ((production,),) = facts(table, "production")
    for number, name, changes in facts(table, "level"):
        level = int(number)
        if level > int(production):
            continue  # not released: 3.9.2 calls another one 22
        assert versions.RELEASES[level] == name
        if level >= versions.MINIMUM:
            assert (level in versions.CHANGED_METADATA) is (changes == "changes=true")


def test_what_is_understood_is_the_newest_version_of_kafka() -> None:
    ((least,),), ((most,),) = facts(NEWEST, "minimum"), facts(NEWEST, "production")
    assert (int(least), int(most)) == (versions.MINIMUM, versions.UNDERSTOOD)
    assert versions.MINIMUM <= versions.LATEST <= versions.UNDERSTOOD
    found = {versions.METADATA_VERSION: versions.UNDERSTOOD}
    for name, production in facts(NEWEST, "feature"):
        found[name] = int(production.removeprefix("production="))
    assert {name: high for name, (_, high) in versions.UNDERSTOOD_FEATURES.items()} == found


def test_formatting_at_a_level_finalizes_the_features_that_kafka_finalizes() -> None:
    rows = [(name, int(level), int(since.removeprefix("since="))) for name, level, since, _ in _feature_levels()]
    for at in range(versions.MINIMUM, versions.UNDERSTOOD + 1):
        expected: dict[str, int] = {}
        for name, level, since in rows:
            if since <= at:
                expected[name] = max(level, expected.get(name, 0))
        mapping = versions.version_mapping(at)
        assert {name: mapping[name] for name in expected} == expected


def test_features_need_what_they_need_in_kafka() -> None:
    for name, level, _, needs in _feature_levels():
        text = needs.removeprefix("needs={").removesuffix("}")
        pairs = [one.split("=") for one in text.split(", ") if one]
        assert versions.dependencies(name, int(level)) == {other: int(needed) for other, needed in pairs}


def _feature_levels() -> list[list[str]]:
    rows = [line.split(" ", 4)[1:] for line in NEWEST.read_text().splitlines() if line.startswith("feature-level ")]
    return [row for row in rows if row[0] != versions.METADATA_VERSION]


def test_each_metadata_record_is_known_in_each_version(table: Path) -> None:
    for number, name, span in facts(table, "record"):
        known = RECORD_TYPES.get(int(number))
        assert known is not None and known.__name__ == name
        assert int(span.split("-")[1]) <= known.VERSION_MAX
        if table == NEWEST:
            assert int(span.split("-")[1]) == known.VERSION_MAX


WRITTEN: Mapping[str, type[Record]] = {
    "partitionChangeRecord": PartitionChangeRecord,
    "partitionRecord": PartitionRecord,
    "registerBrokerRecord": RegisterBrokerRecord,
    "registerControllerRecord": RegisterControllerRecord,
    "brokerRegistrationChangeRecord": BrokerRegistrationChangeRecord,
}


def test_records_are_written_in_the_versions_of_the_level() -> None:
    rows = facts(NEWEST, "writes")
    assert {row[0] for row in rows} <= WRITTEN.keys()
    for name, version, _, since in rows:
        if int(since) >= versions.MINIMUM:
            assert versions.record_version_max(WRITTEN[name], int(since)) == int(version)


def test_error_codes_have_kafkas_names(table: Path) -> None:
    assert {int(code): name for code, name in facts(table, "error")}.items() <= {
        int(one): one.name for one in ErrorCode
    }.items()
    if table == NEWEST:
        assert len(facts(table, "error")) == len(ErrorCode)


def test_apis_are_spoken_as_far_as_kafka_has_them() -> None:
    rows = {int(key): (name, span) for key, name, span, *_ in facts(NEWEST, "api")}
    for key, api in API.items():
        name, span = rows[int(key)]
        assert api.max_version == int(span.split("-")[1]), f"{name}: Kafka has {span}"


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
@pytest.mark.usefixtures("world")
def test_the_committed_tables_are_those_of_the_jars(path: Path) -> None:
    if not (cache_directory() / f"kafka-{path.stem}" / "libs").is_dir() or shutil.which("javac") is None:
        pytest.skip(f"no jars of Apache Kafka {path.stem}, or no JDK")
    command = [str(ROOT / "scripts" / "kafka-tables"), path.stem]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert printed.stdout == path.read_text()


@pytest.mark.parametrize("arguments", [[], ["4.4.0", "new"], ["4.4.0", "--new", "x"], ["4.9.9"], ["x"], ["-v"]])
@pytest.mark.usefixtures("world")
def test_a_wrong_argument_is_one_line(arguments: list[str]) -> None:
    command = [str(ROOT / "scripts" / "kafka-tables"), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1 and ended.stdout == ""
    assert re.fullmatch(r"kjbod: (usage|scripts/kafka: .* is no version with checksums).*\n", ended.stderr)
