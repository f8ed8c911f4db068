"""Kafka's own ``new KafkaConfig`` (4.3.1) takes and refuses the files that ours does, and reads the same values.

Generated files (:mod:`tests.config.generated_files`), 2,000 a run in the deep form, a seeded sample in CI; one Java for
all. Where both differ on purpose, each line of ours is one of :data:`ON_PURPOSE`, with the reason.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import pytest

from kjbod.config import Config, parse_config
from kjbod.config.keys import OWN_PREFIX, settings
from kjbod.errors import ConfigError
from scripts.rig.kafka import KafkaKit
from tests.config.generated_files import File, files, text_of
from tests.depth import at, seeds

HERE: Final = "/home/a"
Values = Mapping[str, object]
ON_PURPOSE: Final[Mapping[str, str]] = {
    r"log\.dirs?=.*: expected each directory once, .* again": "the second lock fails at the start of Kafka's broker",
    r"log\.dirs?=.*: expected directories beside each other": "Kafka's broker ends at the first or the second start",
    r"metadata\.log\.dir=.*: expected .*, as it is spelled in": "the second lock fails at the start of Kafka's broker",
    r"metadata\.log\.dir=.*: expected one of .*, or a directory beside": "Kafka's broker ends at its second start",
    r"metadata\.log\.dir=: expected the path": "Kafka looks in the directory in which it was started",
    r"metadata\.log\.dir=\s+: expected the path": "Kafka looks in the directory in which it was started",
    r"controller\.listener\.names=.*: expected names in upper case": "Kafka's broker finds no protocol at its start",
    r"(advertised\.)?listeners=.*:-[0-9]+.*: expected host:port": "Kafka cannot listen at a negative port",
    r"default\.replication\.factor=.*: expected a whole number": "Kafka keeps the lower 16 bits",
    r"metadata\.log\.segment\.ms=.*: expected a whole number": "LogConfig refuses it when Kafka's controller starts",
    r"kjbod\.state\.dir=": "a key of kjbod's own, whose default lies below /",
    r"replica\.alter\.log\.dirs\.io\.max\.bytes\.per\.second=": "a dynamic key of Kafka's, which kjbod reads here too",
}
"""Beginning of a line about a file that Kafka takes and kjbod refuses, and why."""


def ours(file: File) -> Config | ConfigError:
    try:
        return parse_config(text_of(file), source="s", working_directory=HERE, host="host1")
    except ConfigError as error:
        return error


def values_of(config: Config, names: list[str]) -> Values:
    """Values as Kafka prints them."""
    endpoints = [(one.name, one.protocol, one.host or None, one.port) for one in config.listeners]
    found: dict[str, object] = {
        "node.id": config.node_id,
        "roles": sorted(config.process_roles),
        "log.dirs": list(config.log_dirs),
        "metadata.log.dir": config.metadata_log_dir,
        "listeners": endpoints,
        "protocols": dict(config.listener_security_protocol_map),
        "controllers": list(config.controller_listener_names),
        "advertised": [one.name for one in config.advertised_broker_listeners],
        "overrides": dict(config.max_connections_per_ip_overrides),
    }
    if "broker" in config.process_roles:
        found["inter.broker"] = config.inter_broker_listener_name
        found["cordoned"] = sorted(config.cordoned_log_dirs)
    table = settings()
    return found | {name: getattr(config, table[name].field) for name in names}


class Kafkas:
    """Kafka's classes, as py4j shows them. Short answers only: py4j is slow with long ones."""

    def __init__(self, jvm: Any) -> None:
        self._properties = jvm.java.util.Properties
        self._stream = jvm.java.io.ByteArrayInputStream
        self._made = jvm.kafka.server.KafkaConfig.fromProps

    def read(self, file: File, names: list[str]) -> Values | str:
        """The values of a file, or why it is refused."""
        from py4j.protocol import Py4JJavaError

        properties = self._properties()
        properties.load(self._stream(text_of(file)))
        try:
            made = self._made(properties, False)
            return self._values(made, file, names)
        except Py4JJavaError as error:
            return str(error.java_exception.toString())

    def _values(self, made: Any, file: File, names: list[str]) -> Values:
        roles = re.findall("broker|controller", made.processRoles().toString().lower())
        overrides = re.findall(r"([^ (,]*) -> (-?\d+)", made.maxConnectionsPerIpOverrides().toString())
        found: dict[str, object] = {
            "node.id": made.nodeId(),
            "roles": sorted(set(roles)),
            "log.dirs": [_absolute(one) for one in _list(made.logDirs())],
            "metadata.log.dir": _absolute(made.metadataLogDir()),
            "listeners": _endpoints(made.listeners().toString()),
            "protocols": dict(
                re.findall(r"ListenerName\((.*?)\)=(\w+)", made.effectiveListenerSecurityProtocolMap().toString())
            ),
            "controllers": _list(made.controllerListenerNames()),
            "advertised": [name for name, *_ in _endpoints(made.effectiveAdvertisedBrokerListeners().toString())],
            "overrides": {host or "127.0.0.1": max(int(count), 0) for host, count in overrides},
        }
        if "broker" in file.get("process.roles", ""):
            found["inter.broker"] = made.interBrokerListenerName().value()
            found["cordoned"] = sorted(_absolute(one) for one in _list(made.cordonedLogDirs()))
        return found | {name: _counted(name, made.get(name)) for name in names}


def _list(java: Any) -> list[str]:
    """Entries of a list in one question."""
    text: str = java.toString()[1:-1]
    return text.split(", ") if text else []


def _absolute(path: str) -> str:
    """As ``File.getAbsolutePath``."""
    joined = path if path.startswith("/") else f"{HERE}/{path}"
    return re.sub("/+", "/", joined).rstrip("/") or "/"


def _endpoints(text: str) -> list[tuple[str, str, str | None, int]]:
    found = re.findall(r"listenerName='(.*?)', securityProtocol=(\w+), host='?(.*?)'?, port=(-?\d+)", text)
    return [(name, protocol, None if host in ("", "null") else host, int(port)) for name, protocol, host, port in found]


def _counted(name: str, value: object) -> object:
    """A number as it counts here."""
    least = settings()[name].key.least
    return max(value, least) if isinstance(value, int) and least is not None else value


@pytest.mark.parametrize("seed", seeds())
def test_kafka_takes_and_refuses_the_same_files_and_reads_the_same_values(kafka_kit: KafkaKit, seed: int) -> None:
    pytest.importorskip("py4j", reason="scripts/setup --fleet")
    count = at(quick=30, ci=100, deep=2000)
    counted: Counter[str] = Counter()
    differences: list[tuple[File, object, object]] = []

    def compare(jvm: Any) -> None:
        kafkas, table = Kafkas(jvm), settings()
        for file in files(seed, count):
            simple = [n for n in file if n in table and table[n].kind in (int, bool) and not n.startswith(OWN_PREFIX)]
            names = [n for n in simple if n not in _NOT_KAFKAS]
            theirs, mine = kafkas.read(file, names), ours(file)
            if isinstance(theirs, str) != isinstance(mine, ConfigError):
                known = isinstance(mine, ConfigError) and all(map(_on_purpose, mine.problems))
                counted["on purpose" if known else "different"] += 1
                if not known:
                    differences.append((file, theirs, mine))
            elif isinstance(mine, ConfigError) or (wanted := values_of(mine, names)) == theirs:
                counted["refused by both" if isinstance(mine, ConfigError) else "taken by both"] += 1
            else:
                assert not isinstance(theirs, str)
                counted["different"] += 1
                differences.append((file, *_apart(theirs, wanted)))

    kafka_kit.ask(compare)
    print(f"seed {seed}: {dict(counted)}")
    assert differences == [], dict(counted)
    assert counted["taken by both"] > count / 5, "files that are worth it"
    assert counted["refused by both"] > count / 5, "files that are worth it"


_NOT_KAFKAS: Final = frozenset(
    {"allow.everyone.if.no.acl.found", "replica.alter.log.dirs.io.max.bytes.per.second", "node.id"}
)


def _on_purpose(line: str) -> bool:
    return any(re.match(f"s: {pattern}", line) for pattern in ON_PURPOSE)


def _apart(theirs: Values, mine: Values) -> tuple[Values, Values]:
    names = [name for name in mine if theirs.get(name) != mine[name]]
    return {name: theirs.get(name) for name in names}, {name: mine[name] for name in names}
