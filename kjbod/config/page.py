"""Generate ``kjbod/config/README.md``, the reference page of configuration keys, from the table of keys.

``kjbod config keys`` prints it. This module adds defaults as text where the table has none.
"""

import dataclasses
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from kjbod.config.endpoints import INT_MAX, HostPort
from kjbod.config.keys import AGENT, CONTROLLER, EITHER, GUARD, INT_MIN, LONG_MAX, OWN_PREFIX, Setting, settings
from kjbod.config.needs import COMMANDS, NAMES

_REQUIRED: Final = "(required)"
_ONE_OF_TWO: Final = "(one of the two is required)"
_DEFAULTS: Final[Mapping[str, str]] = {
    "node_id": _REQUIRED,
    "process_roles": _REQUIRED,
    "broker_rack": "(none)",
    "log_dirs": "`/tmp/kafka-logs`",
    "metadata_log_dir": "the first of `log.dirs`",
    "cordoned_log_dirs": "(none)",
    "listeners": "`PLAINTEXT://:9092`",
    "advertised_listeners": "as `listeners`",
    "controller_listener_names": _REQUIRED,
    "listener_security_protocol_map": "each protocol under its own name",
    "controller_quorum_bootstrap_servers": _ONE_OF_TWO,
    "controller_quorum_voters": _ONE_OF_TWO,
    "max_connections_per_ip_overrides": "(none)",
    "authorizer_class_name": "(none)",
    "super_users": "(none)",
    "delegation_token_secret_key": "(none)",
    "kjbod_host": "(host name)",
    "kjbod_reports_dir": "`<kjbod.state.dir>/reports`",
    "kjbod_metrics_listener": "(off)",
    "kjbod_metrics_web_config_file": "(none)",
}
"""Default texts by field, where the value itself would be unclear or depends on other keys."""
_READERS: Final[Mapping[frozenset[str], str]] = {
    AGENT: "agent",
    CONTROLLER: "controller",
    EITHER: "both",
    GUARD: "guard",
}
_NO_LIMIT: Final = (INT_MAX, LONG_MAX)
_TYPES: Final[Mapping[object, str]] = {int: "int", bool: "boolean", str: "string", HostPort | None: "string"}

_INTRODUCTION: Final = """\
# Configuration

*Made by `kjbod config keys` from [`keys.py`](keys.py): do not edit it. A test fails where the two differ.*

`kjbod agent`, `kjbod controller` and `kjbod server` read Kafka's `server.properties`, with Kafka's keys and defaults.
The file of a KRaft broker, controller or combined node works as it is; what it says of [TLS and
SASL](../security/README.md) holds for what it listens on and connects to. `config.providers` of files, directories and
the environment are resolved in each value that is used. Keys of Kafka's that are not below are ignored. kjbod's own
keys begin with `kjbod.`: one that is not below is an error. A value of the wrong type or out of range is an error too,
of a key on this page. All mistakes are told at once, one line each, with exit code 78. Nothing is read anew while a
process runs, but certificates.

*Read by*: the agent, the controller, or both: there the key changes what the process does. A key that is set where it
changes nothing is named in the log at the start (`config.keys.without.effect`), and so are keys of Kafka's quorum, of
its metadata, of moves and of security for which kjbod has no use. Commands such as `kjbod info` and `kjbod status` read
the same file.

`kjbod guard` reads the file of the broker beside which it runs, whatever protocols that speaks, and takes from it what
the agent takes: the node, its directories, its controllers, and the keys of the verdict, state, reports and metrics. A
second file, `--guard-config`, may be laid over it, with kjbod's own keys only, so that the broker's stays as it is.
"""
_OF_KAFKA: Final = """\
## Kafka's keys
"""
_OWN: Final = """\
## kjbod's own keys

`kjbod.held.timeout.ms`, unless it is 0, and `kjbod.blind.timeout.ms` must be at least `kjbod.probe.timeout.ms`. What
the keys of the verdict rest on: [the verdict on a log directory](../../agent/kjbod_host/health/README.md).
"""
_NEEDS: Final = """\
## Which command needs which key

*needs*: without a value of the key the command ends, with one line. *uses*: the command goes on without the key, and
says so: a variable of `config.providers` may be one that only Kafka's process can resolve, and a file may have been
changed since Kafka started. A guard that has no `log.dir.failure.timeout.ms`, `metadata.log.dir` or
`min.insync.replicas` observes. Nothing: the command does not look at the value. A value that is wrong in any key of
this page ends the agent, the controller, the server, `info` and `format`; an unknown key of kjbod's ends each command.
"""
_COLUMNS: Final = ("key", "type", "default", "values", "read by", "meaning")


def page() -> str:
    """Return the page, in Markdown."""
    own = [setting for setting in settings().values() if setting.name.startswith(OWN_PREFIX)]
    of_kafka = [setting for setting in settings().values() if setting not in own]
    parts = [_INTRODUCTION, _OF_KAFKA, _table(_COLUMNS, map(_row, of_kafka)), _OWN, _table(_COLUMNS, map(_row, own))]
    needs = _table(("key", *(f"`{name}`" for name in COMMANDS)), map(_needs_row, NAMES))
    return "\n".join([*parts, _NEEDS, needs])


def guard_file() -> str:
    """Return a file with kjbod's own keys for a guard, commented out: the meaning and the default of each."""
    needs = COMMANDS["guard run, check"]
    lines = [
        "# kjbod's own keys for the guard on this host. A key that is commented out has the value that is shown.",
        "# Restart kjbod-guard after a change. All keys: kjbod config keys.",
    ]
    for setting in settings().values():
        if setting.name.startswith(OWN_PREFIX) and setting.name in (needs.keys | needs.uses):
            doc = setting.key.doc.replace("`", "")
            lines += ["", *textwrap.wrap(doc, 100, initial_indent="# ", subsequent_indent="# ")]
            values = ", ".join(_values(setting)).replace("`", "")
            lines += [f"# {_type(setting)}{f': {values}' if values else ''}"]
            lines += [f"#{setting.name}={_default_value(setting)}"]
    return "\n".join([*lines, ""])


def _default_value(setting: Setting) -> str:
    """Return the default as a value of the file; empty if there is none, or if it comes from another key."""
    return "" if setting.field in _DEFAULTS else re.sub(r"^(\(.*\)|None)$", "", _default(setting))


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |\n" for row in (columns, *rows)]
    return "".join([lines[0], "|---" * len(columns), "|\n", *lines[1:]])


def _needs_row(name: str) -> tuple[str, ...]:
    words = ("needs" if name in one.keys else "uses" if name in one.uses else "" for one in COMMANDS.values())
    return (f"`{name}`", *words)


def _row(setting: Setting) -> tuple[str, ...]:
    cells = (
        f"`{setting.name}`",
        _type(setting),
        _default(setting),
        ", ".join(_values(setting)),
        _READERS[setting.key.roles],
        setting.key.doc.replace("<", "&lt;"),
    )
    return tuple(cell.replace("|", "\\|") for cell in cells)


def _type(setting: Setting) -> str:
    name = _TYPES.get(setting.kind, "string" if setting.kind == str | None else "list")
    return f"{name}, {setting.key.unit}" if setting.key.unit else name


def _default(setting: Setting) -> str:
    if words := _DEFAULTS.get(setting.field):
        return words
    value = setting.default
    assert value is not dataclasses.MISSING, setting.name
    if isinstance(value, bool):
        return str(value).lower()
    return "(no limit)" if value in _NO_LIMIT else str(value)


def _values(setting: Setting) -> Iterator[str]:
    """Yield the allowed values, if the type alone does not define them."""
    key = setting.key
    yield from (f"`{choice}`" for choice in key.choices)
    if setting.kind is not int:
        return
    if key.at_most not in _NO_LIMIT:
        yield f"{key.at_least} to {key.at_most}"
    elif key.at_least > INT_MIN:
        yield f"from {key.at_least}"
    if key.least is not None:
        yield f"below {key.least} as {key.least}"
