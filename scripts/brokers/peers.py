"""Every API at a secured controller, asked by each kind of peer: who gets an answer, and who changes anything.

kjbod's controller and Kafka's are asked the same. Each gets an empty log of its own, with two users: one that may do
everything, and one that has no right at all.
"""

import asyncio
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, structs

import kjbod.wire.admin_messages  # noqa: F401  enters its messages into API
from kjbod.clock import SystemClock
from kjbod.errors import KjbodError, UnsupportedVersionError
from kjbod.ids import Uuid
from kjbod.metadata.live import dump_live
from kjbod.security.channel import Security
from kjbod.security.opening import client_security
from kjbod.wire.client import AuthenticationFailed, Connection, Disconnected, ForeignPeer
from kjbod.wire.codec import defaults_of
from kjbod.wire.error_codes import name_of
from kjbod.wire.messages import API, ApiKey, RequestBody
from scripts.rig.certificates import Authority
from scripts.rig.cluster import CONTROLLER_ID, NOTHING, Cluster, Properties
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import Processes
from scripts.rig.secured import MECHANISMS, USER, Secured, jaas, scram_options

STRANGER: Final = "alice"
"""A user without any right."""
ALL_RIGHTS: Final = "all rights"
"""The peer that may do everything."""
AUTHORIZER: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:{USER};User:CN=kafka",
}
SECRET_KEY: Final = {"delegation.token.secret.key": "a secret of all nodes"}
KEPT_OUT: Final = frozenset({"no connection", "no login", "closed"})
"""Outcomes of those whom nobody has answered."""
SPARED: Final = frozenset({ApiKey.FETCH_SNAPSHOT})
"""What Kafka's controller (4.3.1) does not survive from who may ask it: one without partitions is its end."""
_TIMEOUT_MS: Final = 10_000
_BEFORE_LOGIN: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})

Matrix = Mapping[tuple[ApiKey, str], str]
"""Outcomes by API and peer."""


def peers(secured: Secured, protocol: str, base: Path) -> dict[str, Security]:
    """Security of each kind of peer, by its name; the last one may do everything, the one before nothing."""
    files = _sasl_files(secured, protocol) if protocol.startswith("SASL") else _tls_files(secured, base)
    return {
        name: client_security(secured.client_file(base / f"{name.replace(' ', '-')}.properties", lines))
        for name, lines in files.items()
    }


def _sasl_files(secured: Secured, protocol: str) -> dict[str, dict[str, object]]:
    good = dict(secured.client(protocol))
    mechanism = MECHANISMS[-1]
    without = {"security.protocol": protocol.removeprefix("SASL_")}
    return {
        "no TLS": {"security.protocol": "PLAINTEXT"},
        "no SASL": {**good, **without},
        "wrong password": {**good, "sasl.jaas.config": jaas(mechanism, password="wrong")},
        "unknown user": {**good, "sasl.jaas.config": jaas(mechanism, username="nobody")},
        "no right": {**good, "sasl.jaas.config": jaas(mechanism, username=STRANGER)},
        ALL_RIGHTS: good,
    }


def _tls_files(secured: Secured, base: Path) -> dict[str, dict[str, object]]:
    good = dict(secured.client("SSL"))
    Authority.make("Another CA").client("kafka").keystore(base, "stranger.pem")
    secured.authority.client(STRANGER).keystore(base, "alice.pem")
    return {
        "no TLS": {"security.protocol": "PLAINTEXT"},
        "no certificate": {**secured.stores(keystore=False), "security.protocol": "SSL"},
        "wrong CA": {**good, "ssl.keystore.location": base / "stranger.pem"},
        "no right": {**good, "ssl.keystore.location": base / "alice.pem"},
        ALL_RIGHTS: good,
    }


def start(
    base: Path,
    processes: Processes,
    kit: KafkaKit,
    secured: Secured,
    protocol: str,
    mechanism: str = MECHANISMS[-1],
    *,
    kafka: bool,
    more: Properties = NOTHING,
) -> Cluster:
    """A controller, Kafka's or kjbod's, with a listener of this protocol, both users, and delegation tokens; ``more``:
    further lines of its file."""
    lines = {**secured.node(protocol, mechanism), **AUTHORIZER, **SECRET_KEY, **more}
    cluster = Cluster(base, processes, kafka=kit if kafka else None, properties=lines)
    kit.format(cluster.controller_config, cluster.cluster_id, "--standalone", *scram_options(USER, STRANGER))
    cluster.start_controller()
    return cluster


def matrix(
    port: int, by_name: Mapping[str, Security], every: int = 1
) -> tuple[dict[tuple[ApiKey, str], str], dict[str, int]]:
    """Outcomes of every API for every peer, and how many records each peer has had written.

    ``every``: those without a login ask only each so manieth API.
    """
    *_, (_, trusted) = by_name.items()
    keys = asyncio.run(_offered(port, trusted))
    outcomes: dict[tuple[ApiKey, str], str] = {}
    written: dict[str, int] = {}
    for name, security in by_name.items():
        before = _records(port, trusted)
        has_login = name in list(by_name)[-2:]
        for key in keys[:: 1 if has_login else every]:
            spared = security is trusted and key in SPARED
            outcomes[key, name] = "not asked" if spared else asyncio.run(_ask(port, security, key))
        written[name] = _records(port, trusted) - before
    return outcomes, written


def lines_of(outcomes: Matrix) -> Iterator[str]:
    """The matrix as a table of Markdown."""
    names = list(dict.fromkeys(name for _, name in outcomes))
    yield f"| API | {' | '.join(names)} |"
    yield f"|---|{'---|' * len(names)}"
    for key in dict.fromkeys(key for key, _ in outcomes):
        yield f"| {key.name} | {' | '.join(outcomes.get((key, name), '-') for name in names)} |"


async def _offered(port: int, security: Security) -> list[ApiKey]:
    async with await Connection.open(
        "127.0.0.1", port, client_id="peers", clock=SystemClock(), security=security
    ) as connection:
        return [key for key in API if key in connection.versions and key not in _BEFORE_LOGIN]


def _records(port: int, security: Security) -> int:
    """Number of records in the log, without those that come by themselves."""
    found = dump_live([("127.0.0.1", port)], lambda _: None, security)
    return sum(not _comes_by_itself(record) for record in found)


def _comes_by_itself(record: Mapping[str, Any]) -> bool:
    """Whether nobody has asked for a record: none at all, or the controller's own registration; or who is known may,
    without any right: a delegation token of its own."""
    kind = record.get("type")
    own = kind == "REGISTER_CONTROLLER_RECORD" and record["data"].get("controllerId") == CONTROLLER_ID
    token = kind == "DELEGATION_TOKEN_RECORD" and record["data"].get("owner") == record["data"].get("requester")
    return own or token or kind in (None, "NO_OP_RECORD")


async def _ask(port: int, security: Security, key: ApiKey) -> str:
    try:
        connection = await Connection.open("127.0.0.1", port, client_id="peers", clock=SystemClock(), security=security)
    except AuthenticationFailed:
        return "no login"
    except (Disconnected, ForeignPeer):
        return "no connection"
    async with connection:
        try:
            answer = await connection.request(_least(API[key].request), timeout_ms=_TIMEOUT_MS)
        except UnsupportedVersionError:
            return "not offered"
        except (Disconnected, KjbodError):
            return "closed"
    codes = sorted(set(_codes(answer)))
    return ", ".join(map(name_of, codes)) or "answered"


def _least(cls: type[RequestBody[Any]]) -> RequestBody[Any]:
    """A request with the least in each field that has no default."""
    made = _instance(cls)
    assert isinstance(made, RequestBody)
    return made


def _instance(cls: type[Any]) -> Any:
    hints, defaults = typing.get_type_hints(cls), defaults_of(cls)
    return cls(**{name: _value(hints[name]) for name in cls.__struct_fields__ if name not in defaults})


def _value(hint: Any) -> Any:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return ()
    if arguments and type(None) in arguments:
        return None
    least = {int: 0, str: "x", bytes: b"", bool: False, float: 0.0, Uuid: Uuid(bytes(15) + b"\x01")}
    return least[hint] if hint in least else _instance(hint)


def _codes(answer: Any) -> Iterator[int]:
    """Error codes anywhere in an answer."""
    for field in structs.fields(answer):
        value = getattr(answer, field.name)
        if field.name == "error_code":
            yield value
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Struct):
                yield from _codes(each)


def is_refused(outcome: str) -> bool:
    """Whether a peer was told nothing but that it may not."""
    return outcome in KEPT_OUT or outcome.endswith("AUTHORIZATION_FAILED")


def differences(ours: Matrix, kafkas: Matrix) -> list[str]:
    """Peers without rights that get further at kjbod's controller than at Kafka's."""
    return [
        f"{key.name}, {name}: {outcome} on kjbod's controller, {kafkas[key, name]} on Kafka's"
        for (key, name), outcome in ours.items()
        if name != ALL_RIGHTS and is_refused(kafkas.get((key, name), "")) and not is_refused(outcome)
    ]
