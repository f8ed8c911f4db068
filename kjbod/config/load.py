"""Read a ``server.properties``, and report all mistakes together.

A problem is one line with file, key, value and the expected value. Kafka's keys that kjbod does not use are ignored, so
that the file of a broker or controller works unchanged. Unknown keys below ``kjbod.`` are mistakes. Rules between
listeners, roles and voters are those of ``KafkaConfig.validateValues`` (4.3.1).

No log directory is accessed: paths are made absolute and compared as text.
"""

import difflib
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from msgspec import Struct

from kjbod.config.endpoints import (
    DEFAULT_PROTOCOL_MAP,
    INT_MAX,
    SECURITY_PROTOCOLS,
    HostPort,
    Listener,
    Voter,
    check_distinct,
    parse_host_counts,
    parse_host_port,
    parse_listener,
    parse_protocol_map,
    parse_server,
    parse_voter,
)
from kjbod.config.keys import OWN_PREFIX, Config, Setting, settings
from kjbod.config.needs import EVERY, GUARD_NEEDS, NAMES, Needs
from kjbod.config.paths import is_below
from kjbod.config.properties import parse_properties, trim
from kjbod.config.providers import NoValueError, Variables
from kjbod.errors import ConfigError
from kjbod.file_kinds import has_mark, kind_by_content, kind_of_properties, misspelled
from kjbod.metadata.acls import STANDARD_AUTHORIZER
from kjbod.printable import printable

FILE_BYTES_MAX = 1024 * 1024
DEFAULT_LOG_DIR = "/tmp/kafka-logs"
"""Kafka's default of ``log.dir``."""
BOTH_ROLES = frozenset({"broker", "controller"})
"""``process.roles`` of a combined node."""
POLICY_CLASSES = ("create.topic.policy.class.name", "alter.config.policy.class.name")
"""Keys of policy classes that Kafka's controller calls before it acts."""
HEAD_BYTES = 512
"""Number of bytes at the start of a file that are enough to recognize its kind."""
SHOWN_MAX = 120
"""Maximum characters of a value in a message."""
_NOT_ROUTABLE = "0.0.0.0"
_INTEGER = re.compile(r"[+-]?0{0,1000}\d{1,19}")
"""Integers of ``Long.parseLong``, which accepts digits of other scripts too."""
_LOGIN_DELAY_MS = 100
"""Kafka's default of ``connection.failed.authentication.delay.ms``."""

_T = TypeVar("_T")
Check = Callable[[Config], Iterable[str]]
"""Further check of a configuration: returns the mistakes, one line each. It also runs if there are other mistakes;
wrong values are then empty, or have their default."""


class _Problem(Struct, frozen=True):
    """A key without a usable value, and the line about it; ``unresolved``: because of a variable."""

    name: str
    line: str
    unresolved: bool = False


def load_config(path: str | Path, *checks: Check, needs: Needs = EVERY) -> Config:
    """Load the configuration from the file at ``path``, and apply ``checks``. Unreadable values that ``needs`` does not
    list are left out.

    Raises:
        ConfigError: the file cannot be read, or something in it is wrong; ``problems`` has every mistake.
    """
    return config_of(_read(path), path, *checks, needs=needs)


def load_guard_config(path: str | Path, own: str | Path | None, *checks: Check, needs: Needs = GUARD_NEEDS) -> Config:
    """Load the configuration from a broker's file, with kjbod's own keys from the file ``own``, so that the broker's
    file can stay unchanged.

    Raises:
        ConfigError: a file cannot be read, or something in it is wrong; ``problems`` has every mistake.
    """
    properties = _properties(_read(path), str(path))
    laid = {} if own is None else _properties(_read(own), str(own))
    foreign = [
        f"{own}: {name}={_shown(value)}: expected keys that begin with {OWN_PREFIX} only: Kafka's are those of {path}"
        for name, value in laid.items()
        if not name.startswith(OWN_PREFIX)
    ]
    if foreign:
        raise ConfigError(*foreign)
    here, host = os.getcwd(), socket.gethostname()  # noqa: PTH109
    sources = dict.fromkeys(laid, str(own))
    return _Loader({**properties, **laid}, str(path), here, host, sources).load(checks, needs)


def _read(path: str | Path) -> bytes:
    try:
        with open(path, "rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}: expected a readable server.properties of Kafka") from None
    except ValueError:
        raise ConfigError(f"{str(path)!r}: expected the path of Kafka's server.properties") from None
    if len(text) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: expected a server.properties of at most {FILE_BYTES_MAX} bytes")
    return text


def config_of(text: bytes, path: str | Path, *checks: Check, needs: Needs = EVERY) -> Config:
    """Return the configuration from the content of the file at ``path``, and apply ``checks``.

    Raises:
        ConfigError: the content has mistakes; ``problems`` lists all of them.
    """
    if len(text) > FILE_BYTES_MAX:
        raise ConfigError(f"{path}: expected a server.properties of at most {FILE_BYTES_MAX} bytes")
    here = os.getcwd()  # noqa: PTH109
    host = socket.gethostname()
    return parse_config(text, *checks, source=str(path), working_directory=here, host=host, needs=needs)


def parse_config(
    text: bytes, *checks: Check, source: str, working_directory: str, host: str, needs: Needs = EVERY
) -> Config:
    """Return the configuration in ``text``. Relative paths are below ``working_directory``; ``host`` is this host's
    name.

    Raises:
        ConfigError: the text has mistakes; the error lists all of them.
    """
    return _Loader(_properties(text, source), source, working_directory, host).load(checks, needs)


def _properties(text: bytes, source: str) -> Mapping[str, str]:
    try:
        found = parse_properties(text)
    except ValueError as error:
        if kind := kind_by_content(text[:HEAD_BYTES]):
            raise ConfigError(f"{source}: {kind}") from None
        raise ConfigError(
            f"{source}: {error}: expected four hexadecimal digits after \\u, or \\\\ for a backslash"
        ) from None
    if "process.roles" not in found and (kind := kind_by_content(text[:HEAD_BYTES]) or kind_of_properties(found)):
        raise ConfigError(f"{source}: {kind}")
    return found


def require_controller(config: Config) -> None:
    """Require a configuration that the controller stub can run, alone or as half of a combined node.

    Raises:
        ConfigError: the configuration is not a controller's, or needs a feature that the stub lacks.
    """
    problems = server_problems if config.process_roles == BOTH_ROLES else controller_problems
    if found := problems(config):
        raise ConfigError(*found)


def broker_problems(config: Config) -> list[str]:
    """Return why this is not a broker's file. Its connections to other nodes do not matter to a reader of this host's
    disks."""
    if not config.process_roles or "broker" in config.process_roles:
        return []
    roles = ",".join(sorted(config.process_roles))
    return [f"{config.source}: process.roles={roles}: expected the file of a broker"]


CUT_AFTER_MS_MIN = 1_000
"""Minimum of ``kjbod.guard.cut.after.ms``: a healthy disk may take this long for one request."""


def guard_problems(config: Config) -> list[str]:
    """Return the reasons why ``kjbod guard run`` cannot run with a configuration."""
    problems = broker_problems(config)
    name, value = "kjbod.guard.cut.after.ms", config.kjbod_guard_cut_after_ms
    most_ms = config.log_dir_failure_timeout_ms
    if value != -1 and not CUT_AFTER_MS_MIN <= value <= most_ms:
        problems.append(
            f"{config.sources.get(name, config.source)}: {name}={value}: expected at least {CUT_AFTER_MS_MIN}, at most "
            f"log.dir.failure.timeout.ms={most_ms}; or -1: by the kind of disk"
        )
    return problems


def agent_problems(config: Config) -> list[str]:
    """Return why ``kjbod agent`` cannot run with a configuration."""
    return [*_role_problems(config, "broker", "kjbod agent"), *security_problems(config)]


def controller_problems(config: Config) -> list[str]:
    """Return why ``kjbod controller`` cannot run with a configuration."""
    return [*_role_problems(config, "controller", "kjbod controller"), *_stub_problems(config)]


def server_problems(config: Config) -> list[str]:
    """Return why ``kjbod server`` cannot run with a configuration, for each of its roles."""
    if config.process_roles == BOTH_ROLES:
        return [*security_problems(config), *_stub_problems(config)]
    return controller_problems(config) if "controller" in config.process_roles else agent_problems(config)


def _stub_problems(config: Config) -> list[str]:
    problems = own_listener_problems(config, one_of_controllers=True)
    for name in POLICY_CLASSES:
        if policy := config.properties.get(name, "").strip():
            problems.append(
                f"{config.source}: {name}={_shown(policy)}: expected no policy, kjbod controller runs no Java classes, "
                "and would do what the policy forbids"
            )
    if len(config.controller_quorum_voters) > 1:
        voters = ",".join(map(str, config.controller_quorum_voters))
        problems.append(
            f"{config.source}: controller.quorum.voters={voters}: "
            "expected this node alone, kjbod controller is a quorum of one; several voters are Apache Kafka's own "
            "controllers, agents work with them"
        )
    if config.authorizer_class_name not in ("", STANDARD_AUTHORIZER):
        problems.append(
            f"{config.source}: authorizer.class.name={config.authorizer_class_name}: "
            f"expected {STANDARD_AUTHORIZER} or nothing"
        )
    return problems


def security_problems(config: Config) -> list[str]:
    """Return why connections to the controllers are impossible with the configuration."""
    from kjbod.security.opening import problems  # not needed by code that only reads local disks

    return problems(config)


def _role_problems(config: Config, role: str, command: str) -> list[str]:
    if not config.process_roles or config.process_roles == {role}:
        return []
    roles = ",".join(sorted(config.process_roles))
    other = "; kjbod server runs both" if config.process_roles == BOTH_ROLES else ""
    return [f"{config.source}: process.roles={roles}: expected {role}, which is what {command} runs{other}"]


def own_listener_problems(config: Config, *, one_of_controllers: bool) -> list[str]:
    """Return why listeners of this node cannot be secured with the file: the controllers' or all others."""
    from kjbod.security.opening import listener_problems

    names = config.controller_listener_names
    return listener_problems(config, [one for one in config.listeners if (one.name in names) == one_of_controllers])


def _shown(value: str) -> str:
    return printable(value, SHOWN_MAX)


def _range(setting: Setting) -> str:
    key = setting.key
    unit = f" ({key.unit})" if key.unit else ""
    return f"a whole number from {key.at_least} to {key.at_most}{unit}"


_NOTHING: dict[str, object] = {
    "node_id": 0,
    "process_roles": frozenset(),
    "log_dirs": (),
    "metadata_log_dir": "",
    "listeners": (),
    "advertised_listeners": (),
    "controller_listener_names": (),
    "listener_security_protocol_map": {},
}
"""Stand-ins for wrong values without a default, for a :data:`Check`."""


_NO_OTHERS: Mapping[str, str] = MappingProxyType({})


class _Loader:
    """Collects values and problems. A ``_read_...`` that notes a problem returns a stand-in, so that the others
    continue."""

    def __init__(
        self,
        properties: Mapping[str, str],
        source: str,
        working_directory: str,
        host: str,
        sources: Mapping[str, str] = _NO_OTHERS,
    ) -> None:
        self._properties = properties
        self._source = source
        self._sources = sources
        """Other files, by the keys that come from them."""
        self._working_directory = working_directory
        self._host = host
        self._variables = Variables(properties, os.environ)
        self._problems: list[_Problem] = []

    def load(self, checks: Iterable[Check], needs: Needs) -> Config:
        self._check_unknown()
        values: dict[str, object] = {"source": self._source, "properties": dict(self._properties)}
        values["sources"] = dict(self._sources)
        for setting in settings().values():
            if not setting.key.parsed_apart:
                values[setting.field] = self._read_simple(setting)
        values["node_id"] = self._read_node_id()
        values["process_roles"] = roles = self._read_roles()
        values["delegation_token_secret_key"] = self._text("delegation.token.secret.key") or None
        values |= self._read_directories(roles or frozenset())
        values |= self._read_own(roles or frozenset(), values)
        values |= self._read_endpoints(roles, values)
        values["max_connections_per_ip_overrides"] = self._read_overrides(values["max_connections_per_ip"])
        self._check_deadlines(values)
        self._check_sizes(values)
        if self._problems:  # what is wrong is left out, so that the checks see the rest
            values = _NOTHING | {name: value for name, value in values.items() if value is not None}
        stopping = [
            one
            for one in self._problems
            if one.name not in NAMES or needs.stops(one.name, unresolved=one.unresolved)  # no key of ours is unknown
        ]
        values["unread"] = {one.name: one.line for one in self._problems if one not in stopping}
        config = Config(**values)  # type: ignore[arg-type]  # the fields and their types are the table's
        lines = [*(one.line for one in stopping), *(problem for check in checks for problem in check(config))]
        if lines:
            raise ConfigError(*self._with_spellings(lines))
        return config

    # Problems

    def _wrong(self, name: str, expected: str) -> None:
        value = self._properties.get(name)
        source = self._sources.get(name, self._source)
        if value is None:
            self._problems.append(_Problem(name, f"{source}: {name} is missing: {expected}"))
        else:
            shown = name if self._is_secret(name) else f"{name}={_shown(value)}"
            self._problems.append(_Problem(name, f"{source}: {shown}: {expected}"))

    def _unresolved(self, name: str, error: NoValueError) -> None:
        """Note a problem like ``_wrong``, for a value with an unresolved variable. Each variable is reported once."""
        secret, value = self._is_secret(name), trim(self._properties[name])
        shown = name if secret else f"{name}={_shown(value)}"
        words = error.reason if value.count("${") == 1 and error.variable in value and not secret else str(error)
        self._problems.append(_Problem(name, f"{self._sources.get(name, self._source)}: {shown}: {words}", True))

    def _with_spellings(self, problems: list[str]) -> list[str]:
        """Return the problems, with misspelled keys of the file in place of missing ones. Kafka ignores unknown keys,
        and so does kjbod if nothing is missing."""
        foreign = [name for name in self._properties if not name.startswith(OWN_PREFIX)]
        for given, meant in misspelled(foreign, settings()):
            source = self._sources.get(given, self._source)
            said = (
                f"{source}: {meant} has a byte order mark (BOM) before it, which Kafka reads as a part of the key: "
                "save the file as UTF-8 without it"
                if has_mark(given)
                else f"{source}: {_shown(given)}: unknown key; did you mean {meant}?"
            )
            problems = [said, *(one for one in problems if not one.startswith(f"{source}: {meant} is missing: "))]
        return problems

    @staticmethod
    def _is_secret(name: str) -> bool:
        setting = settings().get(name)
        return setting is not None and setting.key.secret

    def _check_unknown(self) -> None:
        own = [name for name in settings() if name.startswith(OWN_PREFIX)]
        for name in self._properties:
            if name.startswith(OWN_PREFIX) and name not in own:
                near = difflib.get_close_matches(name, own, n=1)
                hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(own)}"
                self._wrong(name, f"unknown key; {hint}")

    # Values on their own

    def _text(self, name: str) -> str | None:
        """Return the trimmed value, as ``ConfigDef.parseType``; None if the key is not set."""
        value = self._properties.get(name)
        if value is None:
            return None
        try:
            return trim(self._variables.resolve(value))
        except NoValueError as error:
            self._unresolved(name, error)
            return None

    def _read_simple(self, setting: Setting) -> object:
        text = self._text(setting.name)
        if text is None:
            return self._host if setting.field == "kjbod_host" else setting.default
        if setting.name == "allow.everyone.if.no.acl.found":
            return text.lower() == "true"  # the authorizer's own key, which Kafka parses with Boolean.parseBoolean
        if setting.kind is bool:
            return self._read_bool(setting, text)
        if setting.kind is int:
            return self._read_int(setting, text)
        key = setting.key
        if key.choices and text not in key.choices:
            self._wrong(setting.name, f"expected {' or '.join(key.choices)}")
        if key.pattern and not re.fullmatch(key.pattern, text, re.ASCII):
            self._wrong(setting.name, f"expected text like {key.pattern}")
        return text

    def _read_bool(self, setting: Setting, text: str) -> bool | None:
        if text.lower() not in ("true", "false"):
            self._wrong(setting.name, "expected true or false")
            return None
        return text.lower() == "true"

    def _read_int(self, setting: Setting, text: str) -> int | None:
        if not _INTEGER.fullmatch(text) or not setting.key.at_least <= int(text) <= setting.key.at_most:
            self._wrong(setting.name, f"expected {_range(setting)}")
            return None
        return int(text) if setting.key.least is None else max(int(text), setting.key.least)

    def _read_list(self, name: str) -> list[str] | None:
        """Return a comma-separated list without duplicates, as in Kafka; None if the key is not set or wrong."""
        text = self._text(name)
        if text is None:
            return None
        entries = [entry.strip() for entry in text.split(",")] if text else []
        if "" in entries:
            self._wrong(name, "expected no empty entry between commas")
            return None
        return list(dict.fromkeys(entries))

    def _read_each(self, name: str, parse: Callable[[str], _T]) -> tuple[_T, ...] | None:
        """Return a list with ``parse`` applied to each entry; empty if the key is not set, None if it is wrong."""
        if name not in self._properties:
            return ()
        entries = self._read_list(name)
        if entries is None:
            return None
        parsed: list[_T] = []
        for entry in entries:
            try:
                parsed.append(parse(entry))
            except ValueError as error:
                self._wrong(name, f"{error}, not {_shown(entry)}")
                return None
        return tuple(parsed)

    # Identity

    def _read_node_id(self) -> int | None:
        names = [name for name in ("node.id", "broker.id") if name in self._properties]
        if not names:
            self._wrong("node.id", f"expected {_range(settings()['node.id'])}")
            return None
        ids = []
        for name in names:
            text = self._text(name)
            if text is None:
                return None
            if not _INTEGER.fullmatch(text) or not 0 <= int(text) <= INT_MAX:
                self._wrong(name, f"expected {_range(settings()['node.id'])}")
                return None
            ids.append(int(text))
        if len(set(ids)) > 1:
            self._wrong("broker.id", f"expected the same value as node.id={ids[0]}")
            return None
        return ids[0]

    def _read_roles(self) -> frozenset[str] | None:
        roles = self._read_list("process.roles") if "process.roles" in self._properties else []
        if roles is None:
            return None
        if not roles or not set(roles) <= {"broker", "controller"}:
            self._wrong("process.roles", "expected broker, controller or broker,controller")
            return None
        return frozenset(roles)

    # Directories

    def _absolute(self, path: str) -> str:
        """Return a path like ``new File(path).getAbsolutePath()``: absolute, without doubled or final slashes, ``..``
        kept."""
        joined = os.path.join(self._working_directory, path)  # noqa: PTH118  pathlib drops "." which Java keeps
        return re.sub("//+", "/", joined).rstrip("/") or "/"

    def _read_path(self, name: str, default: str) -> str | None:
        text = self._text(name)
        if text is None:
            return default
        if not text or not _can_be_path(text):
            self._wrong(name, "expected the path of a directory")
            return None
        return self._absolute(text)

    def _read_directories(self, roles: frozenset[str]) -> dict[str, object]:
        name = "log.dirs" if "log.dirs" in self._properties else "log.dir"
        entries = self._read_list(name) if name in self._properties else [DEFAULT_LOG_DIR]
        log_dirs = tuple(map(self._absolute, entries or ()))
        if entries is not None and not entries:
            self._wrong(name, "expected at least one directory")
        seen: dict[str, str] = {}
        for path in log_dirs:
            if not _can_be_path(path):
                self._wrong(name, "expected paths of directories")
            same = os.path.normpath(path)
            if same in seen:
                self._wrong(name, f"expected each directory once, {path} is {seen[same]} again")
            seen.setdefault(same, path)
        if name == "log.dirs" and self._properties.get("log.dir", "x").strip() == "":
            self._wrong("log.dir", "expected at least one directory, or no such key beside log.dirs")
        first = log_dirs[0] if log_dirs else ""
        metadata = self._read_path("metadata.log.dir", first)
        if "broker" in roles and metadata:
            self._check_apart(name, log_dirs, metadata)
        return {
            "log_dirs": log_dirs,
            "metadata_log_dir": metadata or first,
            "cordoned_log_dirs": self._read_cordoned(entries or [], roles),
        }

    def _read_cordoned(self, entries: list[str], roles: frozenset[str]) -> tuple[str, ...]:
        """Return the cordoned directories, each spelled as in ``entries``: Kafka compares the text."""
        name = "cordoned.log.dirs"
        cordoned = self._read_list(name) or [] if name in self._properties else []
        if cordoned == ["*"]:
            cordoned = entries
        unknown = [path for path in cordoned if path not in entries]
        if unknown and entries and "broker" in roles:
            self._wrong(name, f"expected entries of log.dirs, spelled as there, or *, not {_shown(unknown[0])}")
        return tuple(self._absolute(path) for path in cordoned if path in entries)

    def _check_apart(self, name: str, log_dirs: tuple[str, ...], metadata: str) -> None:
        """Check that no directory is below a log directory. There it would be read as a replica, or as an invalid
        entry, which ends Kafka's broker at its first or second start. Directories above log directories are harmless. A
        controller reads its metadata directory only."""
        for outer in log_dirs:
            for inner in log_dirs:
                if is_below(inner, outer) and not _is_same(inner, outer):
                    self._wrong(name, f"expected directories beside each other, {inner} lies in {outer}")
            if "metadata.log.dir" in self._properties and metadata != outer and _is_same(metadata, outer):
                self._wrong("metadata.log.dir", f"expected {outer}, as it is spelled in {name}")
            elif metadata not in log_dirs and is_below(metadata, outer):
                self._wrong("metadata.log.dir", f"expected one of {name}, or a directory beside them, not in {outer}")

    def _read_own(self, roles: frozenset[str], values: Mapping[str, object]) -> dict[str, object]:
        state = self._read_path("kjbod.state.dir", "/var/lib/kjbod")
        reports = self._read_path("kjbod.reports.dir", f"{state}/reports")
        log_dirs = values["log_dirs"]
        assert isinstance(log_dirs, tuple)
        for name, path in (("kjbod.state.dir", state), ("kjbod.reports.dir", reports)):
            inside = [one for one in log_dirs if path and is_below(path, one)]
            with_state = name == "kjbod.reports.dir" and name not in self._properties
            if "broker" in roles and inside and path and not with_state:
                expected = f"expected a directory outside the disks that are watched, not below {inside[0]}"
                self._wrong_given(name, _shown(path), expected)
        return {
            "kjbod_state_dir": state,
            "kjbod_reports_dir": reports,
            "kjbod_metrics_listener": self._read_metrics_listener(),
            "kjbod_metrics_web_config_file": self._read_web_config_file(),
            "kjbod_jaas_file": self._read_path("kjbod.jaas.file", "") or None,
        }

    def _read_overrides(self, for_others: object) -> dict[str, int]:
        """Return the overrides of ``max.connections.per.ip``. The limit may be 0 only with overrides: otherwise no
        client could connect."""
        name = "max.connections.per.ip.overrides"
        try:
            overrides = parse_host_counts(self._text(name) or "")
        except ValueError as error:
            self._wrong(name, _shown(str(error)))
            return {}
        if for_others == 0 and not overrides:
            self._wrong("max.connections.per.ip", f"expected at least 1, or the hosts that may connect in {name}")
        return overrides

    def _check_deadlines(self, values: Mapping[str, object]) -> None:
        """Check the deadlines of the verdict against each other."""
        probe_ms = values["kjbod_probe_timeout_ms"]
        held_ms, blind_ms = values["kjbod_held_timeout_ms"], values["kjbod_blind_timeout_ms"]
        for name, value, never in (("kjbod.held.timeout.ms", held_ms, 0), ("kjbod.blind.timeout.ms", blind_ms, None)):
            if isinstance(probe_ms, int) and isinstance(value, int) and value != never and value < probe_ms:
                self._wrong_given(name, value, f"expected at least kjbod.probe.timeout.ms={probe_ms}")

    def _check_sizes(self, values: Mapping[str, object]) -> None:
        """Check limits of connections against each other (``KafkaConfig.validateValues``)."""
        queued, largest = values["queued_max_request_bytes"], values["socket_request_max_bytes"]
        if isinstance(queued, int) and isinstance(largest, int) and 0 < queued < largest:
            self._wrong("queued.max.request.bytes", f"expected at least socket.request.max.bytes={largest}, or -1")
        idle_ms, name = values["connections_max_idle_ms"], "connection.failed.authentication.delay.ms"
        text = self._properties.get(name, str(_LOGIN_DELAY_MS)).strip()
        delay_ms = int(text) if _INTEGER.fullmatch(text) else 0
        if isinstance(idle_ms, int) and 0 <= idle_ms <= delay_ms:
            self._wrong("connections.max.idle.ms", f"expected more than {name}={delay_ms}, or -1")

    def _wrong_given(self, name: str, value: int | str, expected: str) -> None:
        """Note a problem like ``_wrong``, for a value that may be a default."""
        default = "" if name in self._properties else " (the default)"
        source = self._sources.get(name, self._source)
        self._problems.append(_Problem(name, f"{source}: {name}={value}{default}: {expected}"))

    def _read_metrics_listener(self) -> HostPort | None:
        text = self._text("kjbod.metrics.listener")
        if not text:
            return None
        try:
            return parse_host_port(text, port_min=0, host_needed=False)
        except ValueError as error:
            self._wrong("kjbod.metrics.listener", str(error))
            return None

    def _read_web_config_file(self) -> str | None:
        name = "kjbod.metrics.web.config.file"
        text = self._text(name)
        if not text:
            return None
        if not _can_be_path(text):
            self._wrong(name, "expected the path of a file")
            return None
        return self._absolute(text)

    # Endpoints

    def _read_endpoints(self, roles: frozenset[str] | None, values: Mapping[str, object]) -> dict[str, object]:
        before = len(self._problems)
        voters = self._read_each("controller.quorum.voters", parse_voter)
        servers = self._read_each("controller.quorum.bootstrap.servers", parse_server)
        if voters and len({voter.id for voter in voters}) < len(voters):
            self._wrong("controller.quorum.voters", "expected each id once")
        if voters == () and servers == ():
            self._wrong(
                "controller.quorum.bootstrap.servers",
                "expected host:port of the controllers here, or id@host:port of each in controller.quorum.voters",
            )
        names = self._read_controller_names()
        protocols = self._read_protocols(names or ())
        listeners = self._read_listeners("listeners", protocols)
        given = self._read_listeners("advertised.listeners", protocols)
        before_name = len(self._problems)
        inter_broker = self._read_inter_broker_name()
        named = len(self._problems) - before_name
        endpoints: dict[str, object] = {
            "controller_quorum_voters": voters,
            "controller_quorum_bootstrap_servers": servers,
            "controller_listener_names": names,
            "listener_security_protocol_map": protocols,
            "listeners": listeners,
            "inter_broker_listener_name": inter_broker,
        }
        if names is None or listeners is None or given is None:
            return endpoints
        host = values["kjbod_host"] if isinstance(values["kjbod_host"], str) else self._host
        rules = _ListenerRules(roles or frozenset(), names, listeners, given, host)
        node_id = values["node_id"]
        endpoints["advertised_listeners"] = rules.advertised(
            next((voter for voter in voters or () if voter.id == node_id), None)
        )
        # Rules between wrong keys would only confuse. The other rules apply even without the inter-broker listener.
        if len(self._problems) - named > before or roles is None or voters is None:
            return endpoints
        explicit = "inter.broker.listener.name" in self._properties
        broken = rules.broken(protocols or {}, inter_broker, explicit=explicit)
        for name, expected in (*broken, *_voter_problems(roles, voters, node_id)):
            by_protocol = name == "inter.broker.listener.name" and name not in self._properties
            protocol = "security.inter.broker.protocol"
            self._wrong(protocol if by_protocol and protocol in self._properties else name, expected)
        return endpoints

    def _read_controller_names(self) -> tuple[str, ...] | None:
        """Return the names of the controllers' listeners. Names in ``listeners`` are converted to upper case, and Kafka
        compares them with these names unchanged."""
        key = "controller.listener.names"
        names = self._read_each(key, str)
        if names == ():
            self._wrong(key, "expected the name of the controllers' listener")
        elif names and (lower := next((name for name in names if name != name.upper()), None)):
            self._wrong(key, f"expected names in upper case, {lower.upper()} for {lower}")
        return None if names is None else tuple(name.upper() for name in names)

    def _read_protocols(self, controller_names: Iterable[str]) -> dict[str, str] | None:
        name = "listener.security.protocol.map"
        text = self._text(name)
        if text is not None:
            try:
                return parse_protocol_map(text)
            except ValueError as error:
                self._wrong(name, str(error))
                return None
        if name in self._properties:
            return None
        protocols = dict(DEFAULT_PROTOCOL_MAP)
        # Controllers need no entry while no secure protocol is in use (effectiveListenerSecurityProtocolMap).
        used = [entry.partition(":")[0].strip() for entry in self._properties.get("listeners", "").split(",")]
        if not {"SSL", "SASL_PLAINTEXT", "SASL_SSL"} & {one.upper() for one in (*controller_names, *used)}:
            protocols |= {one: "PLAINTEXT" for one in controller_names if one != "PLAINTEXT"}
        return protocols

    def _read_listeners(self, name: str, protocols: Mapping[str, str] | None) -> tuple[Listener, ...] | None:
        advertised = name == "advertised.listeners"
        if protocols is None:
            return None
        if name not in self._properties:
            if advertised:
                return ()
            if "PLAINTEXT" not in protocols:
                self._wrong(name, "expected NAME://host:port,..., as the map has no PLAINTEXT for the default")
                return None
            return (Listener("PLAINTEXT", "", 9092, protocols["PLAINTEXT"]),)
        listeners = self._read_each(name, lambda entry: parse_listener(entry, protocols))
        if listeners == ():
            self._wrong(name, "expected NAME://host:port,...")
            return None
        try:
            check_distinct(listeners or () if not advertised else (_without_port(one) for one in listeners or ()))
        except ValueError as error:
            self._wrong(name, str(error))
            return None
        return listeners

    def _read_inter_broker_name(self) -> str | None:
        key, older = "inter.broker.listener.name", "security.inter.broker.protocol"
        name, protocol = self._text(key), self._text(older)
        if protocol is not None and protocol not in SECURITY_PROTOCOLS:
            self._wrong(older, f"expected one of {', '.join(SECURITY_PROTOCOLS)}")
            return None
        if name is not None and protocol is not None:
            self._wrong(key, f"expected only one of it and {older}")
        if name == "":
            self._wrong(key, "expected the name of a listener, or no such key")
        if not name and key in self._properties:
            return None
        return (protocol or "PLAINTEXT") if name is None else name.upper()


def _without_port(listener: Listener) -> Listener:
    # Two advertised listeners may share a port: a proxy may be in between.
    return Listener(listener.name, listener.host, 0, listener.protocol)


def _can_be_path(text: str) -> bool:
    """Return whether a file can have this name: a ``\\u`` escape may produce a NUL, or half of a surrogate pair."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _is_same(path: str, other: str) -> bool:
    return os.path.normpath(path) == os.path.normpath(other)


def _voter_problems(roles: frozenset[str], voters: tuple[Voter, ...], node_id: object) -> Iterable[tuple[str, str]]:
    ids = [voter.id for voter in voters]
    if "controller" in roles and ids and node_id not in ids:
        yield "controller.quorum.voters", f"expected this controller, node.id={node_id}, among the voters"
    if roles == {"broker"} and node_id in ids:
        yield "controller.quorum.voters", f"expected other nodes only, node.id={node_id} is a broker's"


class _ListenerRules:
    """Rules between listeners, advertised listeners, controller names and roles."""

    def __init__(
        self,
        roles: frozenset[str],
        controller_names: tuple[str, ...],
        listeners: tuple[Listener, ...],
        given: tuple[Listener, ...],
        host: str,
    ) -> None:
        self._roles = roles
        self._controller_names = controller_names
        self._listeners = listeners
        self._given = given
        self._host = host

    def advertised(self, voter: Voter | None) -> tuple[Listener, ...]:
        """Return the effective advertised listeners, the brokers' first; ``voter`` is this node's entry among static
        voters."""
        source = self._given or self._listeners
        brokers = [self._named(one) for one in source if one.name not in self._controller_names]
        return (*brokers, *self._advertised_controllers(voter))

    def _advertised_controllers(self, voter: Voter | None) -> Iterable[Listener]:
        given = {one.name: one for one in self._given}
        bound = {one.name: one for one in self._listeners}
        for position, name in enumerate(self._controller_names):
            if name not in bound:
                continue
            one = given.get(name, bound[name])
            if name not in given and one.host == _NOT_ROUTABLE:
                one = Listener(name, "", one.port, one.protocol)
            if name not in given and not one.host and position == 0 and voter is not None:
                one = Listener(name, voter.host, voter.port, one.protocol)
            yield self._named(one)

    def _named(self, one: Listener) -> Listener:
        return one if one.host else Listener(one.name, self._host, one.port, one.protocol, host_given=False)

    def broken(
        self, protocols: Mapping[str, str], inter_broker: str | None, *, explicit: bool
    ) -> Iterable[tuple[str, str]]:
        """Yield key and expected value of each broken rule.

        Args:
            protocols: security protocols of the listeners.
            inter_broker: the inter-broker listener; None: it could not be read, and its rules are skipped.
            explicit: whether the file sets ``inter_broker``.
        """
        names = {one.name for one in self._listeners}
        controllers = set(self._controller_names)
        if "controller" in self._roles and not controllers <= names:
            yield "controller.listener.names", "expected names that appear in listeners, as this node is a controller"
        if self._roles == {"controller"} and explicit and inter_broker in controllers:
            yield (
                "inter.broker.listener.name",
                "expected a brokers' listener, or no such key: this node is a controller",
            )
        elif self._roles == {"controller"} and explicit and inter_broker is not None and inter_broker not in protocols:
            yield (
                "inter.broker.listener.name",
                f"expected a listener that listener.security.protocol.map has, not {inter_broker}",
            )
        if self._roles == {"controller"} and not names <= controllers:
            yield "listeners", "expected only listeners of controller.listener.names, as this node is a controller only"
        if self._roles == {"broker"}:
            if controllers & names:
                yield "controller.listener.names", "expected names that do not appear in listeners of a broker"
            for name in sorted(controllers - set(protocols)):
                yield "listener.security.protocol.map", f"expected an entry for the controllers' listener {name}"
        if "broker" in self._roles:
            yield from self._broken_for_brokers(names, inter_broker)
        if any(one.host == _NOT_ROUTABLE for one in self.advertised(None)):
            key = "advertised.listeners" if self._given else "listeners"
            yield key, "expected an address that others can reach in advertised.listeners, not 0.0.0.0"

    def _broken_for_brokers(self, names: set[str], inter_broker: str | None) -> Iterable[tuple[str, str]]:
        advertised = {one.name for one in self._given or self._listeners} - set(self._controller_names)
        if not advertised:
            yield "listeners", "expected at least one listener that is not a controllers' one, as this node is a broker"
            return
        if inter_broker is not None and inter_broker not in advertised:
            valid = ", ".join(sorted(advertised))
            yield "inter.broker.listener.name", f"expected a listener that is advertised ({valid}), not {inter_broker}"
        if not advertised <= names:
            yield "advertised.listeners", f"expected only names of listeners ({', '.join(sorted(names))})"
