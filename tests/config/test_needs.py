"""A key that a command does not need does not stop it: each key for each command, and that the table is true."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from kjbod.config import Config, parse_config
from kjbod.config.keys import OWN_PREFIX, settings
from kjbod.config.load import Check, agent_problems, controller_problems, server_problems
from kjbod.config.needs import (
    AGENT_NEEDS,
    ASKING,
    COMMANDS,
    CONTROLLER_NEEDS,
    DECISIVE,
    GUARD_NEEDS,
    HISTORY,
    NAMES,
    SERVER_NEEDS,
    Needs,
)
from kjbod.config.page import page
from kjbod.config.unused import STAND_INS
from kjbod.errors import ConfigError
from kjbod_guard.following import security_to_controllers
from kjbod_guard.start_up import missed

ROOT = Path(__file__).parents[2]
FILE = {
    "process.roles": "broker",
    "node.id": "1",
    "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
    "listeners": "PLAINTEXT://127.0.0.1:9092",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "log.dirs": "/mnt/d1,/mnt/d2",
    "config.providers": "env,file,directory,vault",
    **{
        f"config.providers.{alias}.class": f"org.apache.kafka.common.config.provider.{name}ConfigProvider"
        for alias, name in (("env", "EnvVar"), ("file", "File"), ("directory", "Directory"))
    },
    "config.providers.vault.class": "com.example.Vault",
}
VARIABLES = (
    "${env:NO_SUCH}",
    "${file:/no/such:key}",
    "${directory:/no/such:key}",
    "${vault:secret:key}",
    "${other:key}",
    "a-${env:NO_SUCH}",
)


def read(needs: Needs, **values: str) -> Config:
    lines = {**FILE, **{name.replace("_", "."): value for name, value in values.items()}}
    if "log.dir" in values:
        del lines["log.dirs"]
    if "broker.id" in values:
        del lines["node.id"]
    text = "".join(f"{name}={value}\n" for name, value in lines.items())
    return parse_config(text.encode(), source="s", working_directory="/", host="h", needs=needs)


def of(needs: Needs, name: str, value: str) -> Config:
    return read(needs, **{name: value})


@pytest.mark.parametrize("command", COMMANDS)
def test_each_key_without_a_value_stops_just_the_commands_that_need_it(command: str) -> None:
    needs = COMMANDS[command]
    for number, name in enumerate(NAMES):
        value = VARIABLES[number % len(VARIABLES)]
        if name in needs.keys:
            with pytest.raises(ConfigError) as caught:
                of(needs, name, value)
            (line,) = caught.value.problems
            assert line.count(name) == 1, line
            assert line.count("NO_SUCH") <= 1, line
        else:
            config = of(needs, name, value)
            assert list(config.unread) == [name], "what a command goes on without is known"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["num.partitions", "broker.rack", "listeners", "log.dirs", "node.id", "process.roles"])
def test_a_wrong_value_stops_a_daemon_and_else_just_the_commands_that_need_the_key(command: str, name: str) -> None:
    needs = COMMANDS[command]
    wrong = "," if name != "broker.rack" else "${env:NO_SUCH}"
    if name in needs.keys or (needs.checks_all and name != "broker.rack"):
        with pytest.raises(ConfigError):
            of(needs, name, wrong)
    else:
        assert list(of(needs, name, wrong).unread) == [name]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_key_that_is_not_known_stops_each_command(command: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown key; did you mean kjbod\.state\.dir\?"):
        of(COMMANDS[command], "kjbod.stat.dir", "/x")


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("broker.rack", "${env:A}", "broker.rack=${env:A}: the environment has no such variable"),
        ("broker.rack", " ${env:A} ", "broker.rack=${env:A}: the environment has no such variable"),
        (
            "broker.rack",
            "${env:PATH}${env:A}",
            "broker.rack=${env:PATH}${env:A}: ${env:A}: the environment has no such",
        ),
        ("broker.rack", "${env:PATH:A}", "broker.rack=${env:PATH:A}: expected no path: ${env:key}"),
        ("broker.rack", "r-${env:A}", "broker.rack=r-${env:A}: the environment has no such variable"),
        (
            "log.dirs",
            "${file:/no/such:dirs}",
            "log.dirs=${file:/no/such:dirs}: cannot read the file: No such file or directory",
        ),
        ("delegation.token.secret.key", "x${env:A}", "delegation.token.secret.key: ${env:A}: the environment has no"),
        ("node.id", "${other:id}", "node.id=${other:id}: ${other:...}: config.providers does not list other"),
    ],
)
def test_the_line_names_the_key_and_the_variable_once(name: str, value: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        of(COMMANDS["agent"], name, value)
    assert caught.value.problems[0].startswith(f"s: {line}")


# A guard


@pytest.mark.parametrize("name", sorted(GUARD_NEEDS.uses))
def test_a_guard_watches_on_without_a_key_of_kafkas_and_says_which(name: str) -> None:
    config = of(GUARD_NEEDS, name, "${env:NO_SUCH}")
    assert config.log_dirs == ("/mnt/d1", "/mnt/d2")
    assert config.metadata_log_dir == "/mnt/d1"
    (line,) = missed(config).values()
    follows = "observes: it does not act without it" if name in DECISIVE else "goes on without it"
    assert line == f"s: {name}=${{env:NO_SUCH}}: the environment has no such variable: the guard {follows}"


@pytest.mark.parametrize(
    "lines",
    [
        {"num.partitions": "many", "metadata.log.segment.bytes": "1"},
        {"listeners": "EXTERNAL://h:1"},
        {"broker.heartbeat.interval.ms": "2 s"},
        {"inter.broker.listener.name": "NOWHERE"},
        {"advertised.listeners": "PLAINTEXT://${env:NO_SUCH}:9092"},
        {"controller.quorum.voters": "x"},
    ],
)
def test_a_guard_watches_on_beside_a_broker_whose_file_was_spoilt_since_it_started(lines: dict[str, str]) -> None:
    config = read(GUARD_NEEDS, **lines)
    assert set(config.unread) == lines.keys()
    assert config.log_dirs == ("/mnt/d1", "/mnt/d2")


@pytest.mark.parametrize(
    ("name", "value", "is_known"),
    [
        ("controller.quorum.bootstrap.servers", "${env:NO_SUCH}:9093", False),
        ("controller.listener.names", "${env:NO_SUCH}", False),
        ("listener.security.protocol.map", "${env:NO_SUCH}", False),
        ("controller.quorum.voters", "${env:NO_SUCH}", True),
        ("advertised.listeners", "${env:NO_SUCH}", True),
        ("broker.rack", "${env:NO_SUCH}", True),
    ],
)
def test_a_guard_asks_no_controllers_that_it_could_not_read(name: str, value: str, is_known: bool) -> None:
    security = security_to_controllers(of(GUARD_NEEDS, name, value))
    assert isinstance(security, str) != is_known
    if isinstance(security, str):
        assert security == of(GUARD_NEEDS, name, value).unread[name]


def test_a_guard_says_nothing_of_keys_that_it_does_not_use() -> None:
    assert missed(of(GUARD_NEEDS, "num.partitions", "${env:NO_SUCH}")) == {}


def test_a_command_without_the_node_or_the_directories_has_nothing_in_their_place() -> None:
    assert of(ASKING, "log.dirs", "${env:NO_SUCH}").log_dirs == ()
    assert of(HISTORY, "node.id", "${env:NO_SUCH}").kjbod_state_dir == "/var/lib/kjbod"


# The table


def _read_fields(package: str) -> Iterator[str]:
    """Fields of a configuration that the modules of a folder, or a module, ask for."""
    path = ROOT / package
    for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in (
                "config",
                "self._config",
                "of",
                "loaded",
            ):
                yield node.attr


_DERIVED = {
    "directories": ("log_dirs", "metadata_log_dir"),
    "advertised_broker_listeners": ("advertised_listeners", "controller_listener_names"),
    "advertised_controller_listeners": ("advertised_listeners", "controller_listener_names"),
    "controller_protocol": ("controller_listener_names", "listener_security_protocol_map"),
    "file_delete_delay_ms": ("log_segment_delete_delay_ms",),
}
_SHARED = ("kjbod/security/opening.py", "kjbod/security/reading.py", "agent/kjbod_host/quorum.py")


@pytest.mark.parametrize(
    ("command", "packages"),
    [
        ("guard run, check", ("agent/kjbod_guard", "agent/kjbod_host/health/settings.py", *_SHARED)),
        ("guard history", ("agent/kjbod_guard/past.py",)),
        ("format --standalone, --initial-controllers", ("kjbod/storage_tool.py",)),
        ("guard check --gate, release, restore; status, move, dirs", ("kjbod/cli/ask.py", "kjbod/cli/status.py")),
        ("log-dirs, strays", ("kjbod/cli/log_dirs.py", "kjbod/cli/strays.py")),
    ],
)
def test_what_the_code_of_a_command_asks_for_is_in_the_table(command: str, packages: tuple[str, ...]) -> None:
    by_field = {setting.field: name for name, setting in settings().items()}
    asked = {one for package in packages for found in _read_fields(package) for one in _DERIVED.get(found, (found,))}
    needs = COMMANDS[command]
    known = needs.keys | needs.uses
    hints = {"process.roles", "log.dirs"}  # words of a hint, and how a path is spelled
    names = {by_field[one] for one in asked if one in by_field} - hints
    assert names, "the scan sees nothing"
    assert names <= known


def test_the_page_has_each_key_and_command_once() -> None:
    rows = [line for line in page().partition("## Which command needs")[2].splitlines() if line.startswith("| `")]
    assert len(rows) == len(NAMES) == len(settings()) + len(STAND_INS)
    assert all(line.count("|") == len(COMMANDS) + 2 for line in rows)
    assert all(name in NAMES for needs in COMMANDS.values() for name in needs.keys | needs.uses)
    assert not any(name.startswith(OWN_PREFIX) for name in GUARD_NEEDS.uses)


@pytest.mark.parametrize("key", ["security.inter.broker.protocol", "inter.broker.listener.name"])
@pytest.mark.parametrize(
    ("check", "needs", "text"),
    [
        (controller_problems, CONTROLLER_NEEDS, "process.roles=controller\ncontroller.quorum.voters=2@h:9093\n"),
        (
            controller_problems,
            CONTROLLER_NEEDS,
            "process.roles=controller\ncontroller.quorum.voters=1@h:9093\nlisteners=CONTROLLER://h:9093,PLAINTEXT://h:9092\n",
        ),
        (agent_problems, AGENT_NEEDS, "process.roles=broker\ncontroller.quorum.voters=1@h:9093\n"),
        (
            agent_problems,
            AGENT_NEEDS,
            "process.roles=broker\ncontroller.quorum.bootstrap.servers=h:9093\nlisteners=PLAINTEXT://h:9092,CONTROLLER://h:9093\n",
        ),
        (
            server_problems,
            SERVER_NEEDS,
            "process.roles=broker,controller\ncontroller.quorum.voters=2@h:9093\nlisteners=PLAINTEXT://h:9092\n",
        ),
    ],
)
def test_a_key_that_is_not_needed_turns_no_rule_of_the_others_off(
    check: Check, needs: Needs, text: str, key: str
) -> None:
    base = f"node.id=1\nlog.dirs=/x\ncontroller.listener.names=CONTROLLER\n{text}"
    if "listeners=" not in text.partition("process")[2]:
        base += f"listeners={'CONTROLLER://h:9093' if needs is CONTROLLER_NEEDS else 'PLAINTEXT://h:9092'}\n"
    unresolved = (
        "config.providers=env\n"
        "config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider\n"
        f"{key}=${{env:KJBOD_NOPE}}\n"
    )
    for more in ("", unresolved):
        with pytest.raises(ConfigError):
            parse_config((base + more).encode(), check, source="f", working_directory="/", host="h", needs=needs)
