"""Inputs of the controller besides its state: its configuration, and the sender of a request."""

from collections.abc import Mapping

from msgspec import Struct, field

from kjbod.metadata.acls import Rules as AclRules
from kjbod_controller_stub.access.authorizer import ANONYMOUS
from kjbod_controller_stub.access.mutation_quotas import WINDOW_NUM, WINDOW_SIZE_S
from kjbod_controller_stub.access.tokens import TokenSettings
from kjbod_controller_stub.partitions.topics import TopicDefaults
from kjbod_controller_stub.rules import KIP_858, Rules


class Settings(Struct, frozen=True, kw_only=True):
    """Configuration values that the controller needs."""

    node_id: int
    cluster_id: str
    also_broker: bool = False
    """Whether this node is a broker too, which registers with the same id."""
    rules: Rules = KIP_858
    session_timeout_ms: int = 9_000
    assignment_timeout_ms: int = 120_000
    """``kjbod.assignment.timeout.ms``: a broker is no longer kept fenced for replicas without a directory."""
    topic_defaults: TopicDefaults = field(default_factory=TopicDefaults)
    static_configs: Mapping[str, str] = field(default_factory=dict)
    """Complete ``server.properties`` of the node, which describes itself with it and supplies topic defaults."""
    delete_topic_enable: bool = True
    unclean_election: bool = False
    acl_rules: AclRules = field(default_factory=AclRules)
    tokens: TokenSettings = field(default_factory=TokenSettings)
    min_isr: int = 1
    leader_imbalance_check_ms: int | None = 300_000
    """None: leadership is not given back to preferred replicas by itself."""
    unclean_election_check_ms: int = 300_000
    mutation_window_num: int = WINDOW_NUM
    mutation_window_size_s: int = WINDOW_SIZE_S
    """Their product is what a controller mutation quota may be used for at once, in seconds of its rate."""


class Context(Struct, frozen=True):
    """Facts about a request besides its message, for its handler."""

    api_version: int
    principal: str = ANONYMOUS
    """Principal of the sender: the peer, or the client for whom a broker forwards (KIP-590)."""
    host: str = ""
    """The address that it asks from."""
    forwarded: bool = False
    """Whether a broker forwards it."""
    token_authenticated: bool = False
    """Whether the sender logged in by a delegation token."""
    client_id: str = ""
    """Client id that the sender gave."""
