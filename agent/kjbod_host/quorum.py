"""Controllers of a configuration: addresses and time limits. Pure."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kjbod.config.endpoints import PLAINTEXT
from kjbod.config.keys import Config
from kjbod.metadata.fetching import SEARCH_MS, SECURED_SEARCH_MS, Address, Quorum
from kjbod.wire.connection_setup import ConnectionSetup

if TYPE_CHECKING:
    import random


def voter_addresses(config: Config) -> Mapping[int, Address]:
    """Return the addresses in ``controller.quorum.voters``, by node id."""
    return {voter.id: (voter.host, voter.port) for voter in config.controller_quorum_voters}


def servers(config: Config) -> Sequence[Address]:
    """``controller.quorum.bootstrap.servers``, or the addresses of the voters."""
    named = [(server.host, server.port) for server in config.controller_quorum_bootstrap_servers]
    return named or list(voter_addresses(config).values())


def quorum(config: Config) -> Quorum:
    """Return the time limits and sizes of a metadata follower."""
    return Quorum(
        request_timeout_ms=config.controller_quorum_request_timeout_ms,
        fetch_timeout_ms=config.controller_quorum_fetch_timeout_ms,
        retry_backoff_ms=config.controller_quorum_retry_backoff_ms,
        search_ms=SEARCH_MS if config.controller_protocol in (None, PLAINTEXT) else SECURED_SEARCH_MS,
        fetch_max_bytes=config.controller_quorum_fetch_max_bytes,
        fetch_snapshot_max_bytes=config.controller_quorum_fetch_snapshot_max_bytes,
    )


def connection_setup(config: Config, rng: "random.Random") -> ConnectionSetup:
    """Return the time limits for opening connections."""
    return ConnectionSetup(
        config.socket_connection_setup_timeout_ms, config.socket_connection_setup_timeout_max_ms, rng
    )
