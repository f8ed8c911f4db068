"""``server.properties`` as one frozen configuration."""

from kjbod.config.endpoints import HostPort, Listener, Voter
from kjbod.config.keys import Config
from kjbod.config.load import load_config, parse_config, require_controller

__all__ = [
    "Config",
    "HostPort",
    "Listener",
    "Voter",
    "load_config",
    "parse_config",
    "require_controller",
]
