"""Start of a guard's process: configuration, rights, and modules that are loaded before the event loop starts."""

import importlib
import os
from pathlib import Path
from typing import Final

from kjbod.clock import SystemClock, system_random
from kjbod.config import Config
from kjbod.config.keys import OWN_PREFIX, settings
from kjbod.config.load import guard_problems, load_guard_config
from kjbod.config.needs import DECISIVE, GUARD_NEEDS
from kjbod.config.unused import EVENT as WITHOUT_EFFECT
from kjbod.errors import ConfigError
from kjbod.runtime import systemd
from kjbod.runtime.logging import get_logger
from kjbod.runtime.loop import run_daemon
from kjbod.wire.frames import preload
from kjbod.wire.messages import API, ApiKey
from kjbod_guard import rights
from kjbod_guard.daemon import Guard
from kjbod_guard.helper_link import Started, start_helper
from kjbod_host.daemon import begin

START_TASKS: Final = 18
START_FILES: Final = 64
FILES_OF_DIRECTORY: Final = 4
_SPOKEN: Final = (ApiKey.API_VERSIONS, ApiKey.FETCH, ApiKey.FETCH_SNAPSHOT)
_SPOKEN_TO_ACT: Final = (
    ApiKey.BROKER_HEARTBEAT,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
)
_READ_KEYS: Final = frozenset({"broker", "guard"})
_WITHOUT: Final = "the guard goes on without it"
_WITHOUT_DECISIVE: Final = "the guard observes: it does not act without it"


def read_config(config_path: Path, own_path: Path | None) -> Config:
    """Return the broker's configuration, overlaid with kjbod's own keys from a second file. A guard does not need most
    of Kafka's keys: only Kafka's process may be able to resolve the file, or the file may have changed since.

    Raises:
        ConfigError: with every mistake in a key that a guard cannot do without.
    """
    return load_guard_config(config_path, own_path, guard_problems, needs=GUARD_NEEDS)


def missed(config: Config) -> dict[str, str]:
    """Return keys that a guard uses and could not read, with a line for each about the problem and its consequence."""
    missed = sorted(GUARD_NEEDS.uses & config.unread.keys())
    return {name: f"{config.unread[name]}: {_WITHOUT_DECISIVE if name in DECISIVE else _WITHOUT}" for name in missed}


def main(config_path: Path, own_path: Path | None, mode: str | None) -> int:
    """Run a guard beside the broker of the ``server.properties`` at ``config_path`` until it ends; gives the exit code.

    0 after SIGTERM, 78 when the configuration cannot work, 1 otherwise. Logs go to stderr: for people on a
    terminal, else as JSON lines.

    Raises:
        KjbodError: the guard could not start; one line says why, nothing was changed.
    """
    with systemd.refusal_told():
        config = read_config(config_path, own_path)
        unread = missed(config)
        acts = (mode or config.kjbod_guard_mode) == "act" and not DECISIVE & unread.keys()
        # before the event loop, which it could block, and as the user who started the guard
        source = os.path.realpath(config_path)
        helper = _apart(config, acts=acts)
        paths = len(config.directories)
        begin("guard", tasks=START_TASKS + paths, files=START_FILES + FILES_OF_DIRECTORY * paths)
        _name_keys_without_effect(config)
        for name, line in unread.items():
            get_logger().warning("guard.key.not.read", key=name, reason=line)
        spoken = (*_SPOKEN, *(_SPOKEN_TO_ACT if acts else ()))
        if acts and config.kjbod_guard_slow == "demote":
            importlib.import_module("kjbod.wire.admin_messages")
            spoken = (*spoken, ApiKey.ELECT_LEADERS)
        preload({key: (API[key].max_version, API[key].max_version) for key in spoken})
        return run_daemon(lambda: Guard(config, source, SystemClock(), system_random(), helper).run())


def _apart(config: Config, *, acts: bool) -> Started | str | None:
    """Start the helper while this process has rights, then drop the rights; None: the guard only observes.

    Raises:
        KjbodError: this process cannot continue without these rights.
    """
    is_root = os.geteuid() == 0
    if not acts:
        if not is_root:
            rights.give_up(None)  # the unit may have capabilities for mode act
        return None
    user = rights.owner(rights.log_paths(config)) if is_root else None
    if problem := rights.why_unusable(config, user):
        raise ConfigError(problem)
    helper = _start_helper()
    rights.give_up(user)
    return helper


def _start_helper() -> Started | str:
    """Start the helper; return the helper, or why it could not be started."""
    try:
        return start_helper()
    except OSError as error:
        return f"the privileged helper cannot be started: {error.strerror}"


def _name_keys_without_effect(config: Config) -> None:
    """Log kjbod's own keys that have no effect in a guard."""
    table = settings()
    own = [name for name in config.properties if name.startswith(OWN_PREFIX)]
    if keys := sorted(name for name in own if not table[name].key.roles & _READ_KEYS):
        get_logger().info(WITHOUT_EFFECT, source=config.source, keys=keys)
