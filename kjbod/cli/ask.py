"""Shared parts of the commands that talk to a running agent or guard: their options, and the connection to that
process."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kjbod.config import Config, load_config
from kjbod.config.load import BOTH_ROLES, broker_problems, load_guard_config
from kjbod.config.needs import ASKING, Needs
from kjbod.runtime.control_socket import ControlClient, agent_or_guard_of, guard_of

F = TypeVar("F", bound=Callable[..., Any])


def options(command: F) -> F:
    """Add the options ``-c FILE`` and ``--json``."""
    config = click.option(
        "-c",
        "--config",
        "config_path",
        required=True,
        type=click.Path(path_type=Path, readable=False),
        help="The broker's server.properties.",
    )
    return config(as_json(command))


def as_json(command: F) -> F:
    """Add the option ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="JSON, for machines.")(command)


def guarded(command: F) -> F:
    """Add the option ``--guard-config FILE``, for commands that a guard answers too."""
    option = click.option(
        "--guard-config",
        "own_path",
        type=click.Path(path_type=Path, readable=False),
        help="On a host with Kafka: the file with kjbod's own keys that the guard beside the broker runs with.",
    )
    return option(command)


def load(path: Path, own_path: Path | None = None, needs: Needs = ASKING) -> Config:
    """Load the configuration of the broker on this host, of an agent or of Kafka, whatever protocols that broker uses
    with other nodes. ``own_path`` is a separate file with kjbod's own keys, as for a guard; ``needs`` are those of the
    command.

    Raises:
        ConfigError: the configuration has mistakes; one line for each.
    """
    if own_path is not None:
        return load_guard_config(path, own_path, broker_problems, needs=needs)
    return load_config(path, broker_problems, needs=needs)


def client(config: Config, own_path: Path | None = None) -> ControlClient:
    """Return a client of the guard that runs with the file ``own_path``; without that file, of the agent or guard of
    this configuration."""
    if own_path is not None:
        return guard_client(config, own_path)
    command = "kjbod server" if config.process_roles == BOTH_ROLES else "kjbod agent"
    answerer = agent_or_guard_of(config.source, command)
    return ControlClient(Path(config.kjbod_state_dir), node_id=config.node_id, source=config.source, answerer=answerer)


def guard_client(config: Config, own_path: Path | None, **timeouts: int) -> ControlClient:
    """Return a client of the guard beside the broker of this configuration.

    Args:
        config: configuration of the broker.
        own_path: the file with kjbod's own keys; None: they are in the broker's file.
        timeouts: time limits of :class:`ControlClient`, in milliseconds.
    """
    answerer = guard_of(config.source, None if own_path is None else str(own_path))
    return ControlClient(
        Path(config.kjbod_state_dir),
        node_id=config.node_id,
        source=config.source,
        answerer=answerer,
        **timeouts,
    )


def configured(config: Config, path: str) -> str:
    """Return ``path`` as written in ``log.dirs``, if it is there; else the absolute path. Reads no disk: links are not
    followed."""
    absolute = os.path.abspath(path)  # noqa: PTH100  Path.absolute keeps ..
    return next((each for each in config.log_dirs if os.path.normpath(each) == absolute), absolute)
