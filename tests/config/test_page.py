"""The page of configuration keys: it is what ``kjbod config keys`` prints, and says who really reads each key."""

import re
from pathlib import Path

import pytest

from kjbod.cli import main as cli
from kjbod.config.keys import AGENT, CONTROLLER, EITHER, GUARD, Config, Setting, settings
from kjbod.config.page import page

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "kjbod" / "config" / "README.md"
NONE: frozenset[str] = frozenset()
GUARDS = "agent/kjbod_guard"
SHARED = {
    *("process_roles", "listener_security_protocol_map", "max_connections_per_ip_overrides"),  # read by the loader
    *("log_dirs", "controller_quorum_bootstrap_servers"),  # a controller's file is refused without them
    "kjbod_jaas_file",  # read for those who connect
    "kjbod_metrics_web_config_file",  # read by the daemon of both
    *("kjbod_host", "log_segment_delete_delay_ms"),  # in a controller's listeners, and its topics' configurations
}
"""Fields that both sides depend on although the source of one of them does not name them."""
UNDER_ANOTHER_NAME = {
    "file_delete_delay_ms": "log_segment_delete_delay_ms",
    "advertised_broker_listeners": "advertised_listeners",
    "advertised_controller_listeners": "advertised_listeners",
}


def readers(package: str) -> set[str]:
    """The fields of a configuration that the source of ``package`` names."""
    paths = [path for path in (ROOT / package).rglob("*.py") if package == GUARDS or GUARDS not in str(path)]
    source = "".join(path.read_text() for path in paths)
    return {UNDER_ANOTHER_NAME.get(name, name) for name in re.findall(r"config\.([a-z_]+)", source)}


def test_the_page_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["config", "keys"]) == 0
    assert capsys.readouterr().out == PAGE.read_text(), "run: kjbod config keys > kjbod/config/README.md"


def test_every_key_is_there_once_with_its_default() -> None:
    rows = re.findall(
        r"^\| `([a-z.]+)` \| ([^|]+) \| ([^|]+) \|", page().partition("## Which command")[0], re.MULTILINE
    )
    assert [name for name, *_ in rows] == sorted(settings(), key=lambda name: name.startswith("kjbod."))
    told = {name: default for name, _, default in rows}
    numbers = {name: one for name, one in settings().items() if one.kind is int and told[name].lstrip("-").isdigit()}
    assert len(numbers) > 40
    assert {name: int(told[name]) for name in numbers} == {name: one.default for name, one in numbers.items()}


def test_the_page_says_who_reads_a_key() -> None:
    agent, controller = readers("agent"), readers("controller_stub")
    guard = readers(GUARDS) - agent - controller

    def found(setting: Setting) -> frozenset[str]:
        if setting.field in guard:
            return GUARD
        return (AGENT if setting.field in agent else NONE) | (CONTROLLER if setting.field in controller else NONE)

    wrong = {
        one.name: found(one) for one in settings().values() if one.field not in SHARED and one.key.roles != found(one)
    }
    assert wrong == {}, "kjbod/config/keys.py: who reads them"


def test_who_reads_a_key_is_said_of_keys_that_there_are() -> None:
    assert set(Config.__dataclass_fields__) >= SHARED | set(UNDER_ANOTHER_NAME.values())
    assert {one.key.roles for one in settings().values()} == {AGENT, CONTROLLER, EITHER, GUARD}
