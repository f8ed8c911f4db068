"""Keys that change nothing where they are set are named in the log, once; how the others show, the tests of agent and
controller say."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from kjbod.config.keys import settings
from kjbod.config.unused import EVENT, NAMES_MAX, STAND_INS, keys_without_effect
from kjbod_agent import daemon
from kjbod_controller_stub import process
from tests.config.test_load import BROKER, CONTROLLER, parse

OF_KAFKA = [
    "controller.performance.always.log.threshold.ms",
    "controller.performance.sample.period.ms",
    "controller.quorum.append.linger.ms",
    "controller.quorum.auto.join.enable",
    "controller.quorum.election.backoff.max.ms",
    "controller.quorum.election.timeout.ms",
    "internal.metadata.log.segment.bytes",
    "num.replica.alter.log.dirs.threads",
    "server.max.startup.time.ms",
]
"""Of 4.3.1 in ``QuorumConfig``, ``KRaftConfigs`` and ``MetadataLogConfig`` all that kjbod has no use for, and some."""
BASES = {"broker": BROKER, "controller": CONTROLLER}
VALUES = {
    "kjbod.placement": "weighted",
    "kjbod.placement.accept": "always",
    "kjbod.storage.agent": "posix",
    "kjbod.controller.rules": "kafka",
    "kjbod.role": "broker",
    "kjbod.state.dir": "/var/lib/other",
    "kjbod.reports.dir": "/var/lib/other",
    "cordoned.log.dirs": "*",
    "inter.broker.listener.name": "PLAINTEXT",
    "broker.rack": "r",
}


def value_of(key: str) -> str:
    default = settings()[key].default
    return VALUES.get(key) or (str(default).lower() if isinstance(default, bool) else str(default))


@pytest.mark.parametrize(
    ("key", "role"),
    [(name, role) for name, setting in settings().items() for role in BASES if role not in setting.key.roles],
)
def test_a_key_of_the_other_role_or_of_none_is_named(key: str, role: str) -> None:
    assert keys_without_effect(parse(BASES[role], f"{key}={value_of(key)}"), role) == (key,)


@pytest.mark.parametrize("role", BASES)
@pytest.mark.parametrize("key", OF_KAFKA)
def test_a_key_of_kafkas_quorum_or_metadata_that_kjbod_does_not_use_is_named(key: str, role: str) -> None:
    assert keys_without_effect(parse(BASES[role], f"{key}=1"), role) == (key,)


@pytest.mark.parametrize("role", BASES)
def test_a_mistyped_key_of_the_quorum_is_named(role: str) -> None:
    config = parse(BASES[role], "controller.quorum.fetch.timout.ms=1")
    assert keys_without_effect(config, role) == ("controller.quorum.fetch.timout.ms",)


def test_keys_of_security_are_named_as_groups() -> None:
    config = parse(
        BROKER, "ssl.keystore.location=/k", "ssl.key.password=hush", "sasl.jaas.config=x", "listener.name.a.b=1"
    )
    assert keys_without_effect(config, "broker") == ("listener.name.*", "sasl.*", "ssl.*")


@pytest.mark.parametrize(("old", "key"), STAND_INS.items())
def test_an_older_name_is_that_of_its_key(old: str, key: str) -> None:
    values = {"log.dir": "/mnt/d1", "broker.id": "1", "security.inter.broker.protocol": "PLAINTEXT"}
    lines = [f"{old}={values[old]}", *(["-log.dirs"] if old == "log.dir" else [])]
    expected = () if "broker" in settings()[key].key.roles else (old,)
    assert keys_without_effect(parse(BROKER, *lines), "broker") == expected


def test_what_is_used_and_the_data_plane_are_no_news() -> None:
    assert (
        keys_without_effect(parse(BROKER, "log.retention.hours=1", "num.io.threads=8", "my.plugin=x"), "broker") == ()
    )
    assert keys_without_effect(parse(CONTROLLER), "controller") == ()


def test_a_file_full_of_them_is_a_line_of_bounded_length() -> None:
    names = [f"controller.x{number:04}" for number in range(NAMES_MAX + 7)]
    told = keys_without_effect(parse(BROKER, *(f"{name}=1" for name in names)), "broker")
    assert told == (*names[:NAMES_MAX], "and 7 more")


def start_agent(path: Path, patched: pytest.MonkeyPatch) -> int:
    for name in ("begin", "preload"):
        patched.setattr(daemon, name, lambda *_, **__: None)
    patched.setattr(daemon, "run_daemon", lambda _: 0)
    return daemon.main(path)


def start_controller(path: Path, patched: pytest.MonkeyPatch) -> int:
    for name in ("begin", "raise_files_limit"):
        patched.setattr(process, name, lambda *_, **__: None)
    patched.setattr(process, "run_daemon", lambda _: 0)
    return process.main(path)


@pytest.mark.parametrize(("base", "start"), [(BROKER, start_agent), (CONTROLLER, start_controller)])
@pytest.mark.parametrize(
    "given", ["", "controller.quorum.election.timeout.ms=500\ncontroller.quorum.append.linger.ms=5\n"]
)
def test_a_start_names_them_once_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    base: str,
    start: Callable[[Path, pytest.MonkeyPatch], int],
    given: str,
) -> None:
    path = tmp_path / "server.properties"
    path.write_text(base + given)
    with structlog.testing.capture_logs() as lines:
        assert start(path, monkeypatch) == 0
    told: list[Any] = [line for line in lines if line["event"] == EVENT]
    expected = [line.partition("=")[0] for line in sorted(given.splitlines())]
    assert [(line["source"], line["keys"]) for line in told] == ([(str(path), expected)] if given else [])


def test_on_a_combined_node_only_what_neither_role_uses_is_named() -> None:
    config = parse(BROKER, "broker.heartbeat.interval.ms=1", "num.partitions=2", "kjbod.role=broker")
    assert "broker.heartbeat.interval.ms" in keys_without_effect(config, "controller")
    assert "num.partitions" in keys_without_effect(config, "broker")
    assert keys_without_effect(config, "broker,controller") == ()
