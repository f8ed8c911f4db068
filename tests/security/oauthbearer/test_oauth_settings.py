"""OAUTHBEARER as files say it: of a command, of a node as an operator of Strimzi writes it, and of listeners; what is
missing or wrong is named with its key, without a secret, and unsigned tokens are nobody's default."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from kjbod.config import load_config
from kjbod.errors import ConfigError
from kjbod.security.keys import ChannelSettings, ListenerSettings, Login
from kjbod.security.oauthbearer.keys import (
    CLIENT_ASSERTION,
    CLIENT_SECRET,
    FILE,
    JWT_BEARER,
    UNSECURED,
    Endpoint,
    Refresh,
    TokenSettings,
)
from kjbod.security.opening import of_controllers, problems
from kjbod.security.opening import of_own_listener as of_node_listener
from kjbod.security.settings import of_client, of_own_listener
from tests.security.test_settings import no_sections

PACKAGE = "org.apache.kafka.common.security.oauthbearer"
MODULE = f"{PACKAGE}.OAuthBearerLoginModule required"
HANDLER = f"{PACKAGE}.OAuthBearerLoginCallbackHandler"
VALIDATOR = f"{PACKAGE}.OAuthBearerValidatorCallbackHandler"
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
CLIENT = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.login.callback.handler.class": HANDLER,
    TOKEN_URL: "https://idp.example/token",
    "sasl.jaas.config": f'{MODULE} clientId="me" clientSecret="hunter2" scope="s" extension_poolId="p"'
    ' ssl.truststore.location="/t.pem" ssl.truststore.type="PEM";',
}


def client(lines: Mapping[str, str | None]) -> ChannelSettings:
    merged = {name: value for name, value in {**CLIENT, **lines}.items() if value is not None}
    return of_client(merged, "c", str, no_sections)  # type: ignore[arg-type]


def login(lines: Mapping[str, str | None]) -> tuple[Login, TokenSettings]:
    found = client(lines).login
    assert found is not None and found.token is not None and "hunter2" not in repr(found)
    return found, found.token


def test_a_command_gets_its_token_as_its_file_says() -> None:
    found, token = login({})
    assert found.username == "me" and token.grant == CLIENT_SECRET
    assert (token.client_secret, token.scope, token.extensions) == ("hunter2", "s", {"poolId": "p"})
    assert isinstance(token.endpoint, Endpoint) and token.endpoint.key == f"c: {TOKEN_URL}"
    tls = token.endpoint.tls
    assert (
        tls is not None
        and tls.truststore is not None
        and (tls.truststore.path, tls.truststore.kind) == ("/t.pem", "PEM")
    )
    assert client({}).tls is not None and client({}).tls != tls


def test_keys_come_before_options_of_the_jaas_entry() -> None:
    name = "sasl.oauthbearer.client.credentials.client"
    found, token = login({f"{name}.id": "you", f"{name}.secret": "s3", "sasl.oauthbearer.scope": "other"})
    assert (found.username, token.client_id, token.client_secret, token.scope) == ("you", "you", "s3", "other")


def test_times_and_tries_are_kafkas() -> None:
    _, token = login({})
    assert token.refresh == Refresh(0.8, 0.05, 60, 300) and token.endpoint is not None
    assert (token.endpoint.backoff_ms, token.endpoint.backoff_max_ms) == (100, 10_000)
    _, token = login(
        {
            "sasl.login.refresh.window.factor": "0.5", "sasl.login.refresh.window.jitter": "0.25",
            "sasl.login.refresh.min.period.seconds": "1", "sasl.login.refresh.buffer.seconds": "2",
            "sasl.login.connect.timeout.ms": "3", "sasl.login.read.timeout.ms": "4",
            "sasl.login.retry.backoff.ms": "5", "sasl.login.retry.backoff.max.ms": "6",
            "sasl.oauthbearer.header.urlencode": "TRUE",
        }
    )  # fmt: skip
    assert token.refresh == Refresh(0.5, 0.25, 1, 2) and token.encodes_header and token.endpoint is not None
    at = token.endpoint
    assert (at.connect_timeout_ms, at.read_timeout_ms, at.backoff_ms, at.backoff_max_ms) == (3, 4, 5, 6)


@pytest.mark.parametrize(
    ("lines", "grant"),
    [
        ({TOKEN_URL: "file:///var/run/token"}, FILE),
        ({TOKEN_URL: "file:///t", "sasl.oauthbearer.jwt.retriever.class": f"{PACKAGE}.FileJwtRetriever"}, FILE),
        ({"sasl.oauthbearer.jwt.retriever.class": f"{PACKAGE}.ClientCredentialsJwtRetriever"}, CLIENT_SECRET),
        ({"sasl.oauthbearer.assertion.file": "/a"}, CLIENT_ASSERTION),
        (
            {"sasl.oauthbearer.assertion.claim.iss": "me", "sasl.oauthbearer.assertion.private.key.file": "/k"},
            CLIENT_ASSERTION,
        ),
        (
            {
                "sasl.oauthbearer.jwt.retriever.class": f"{PACKAGE}.JwtBearerJwtRetriever",
                "sasl.oauthbearer.assertion.file": "/a",
            },
            JWT_BEARER,
        ),
        ({"sasl.login.callback.handler.class": f"{PACKAGE}.secured.OAuthBearerLoginCallbackHandler"}, CLIENT_SECRET),
    ],
)
def test_a_token_is_got_by_kafkas_own_classes(lines: dict[str, str], grant: str) -> None:
    assert login(lines)[1].grant == grant


def test_without_a_class_a_token_is_made_here_as_in_kafka() -> None:
    unsecured = f'{MODULE} unsecuredLoginStringClaim_sub="alice" unsecuredLoginExtension_a="b";'
    found, token = login({"sasl.login.callback.handler.class": None, "sasl.jaas.config": unsecured})
    assert (found.username, token.grant, token.endpoint, token.extensions) == ("alice", UNSECURED, None, {"a": "b"})


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ({TOKEN_URL: None}, f"{TOKEN_URL} is missing: expected a URL of https, http or file"),
        ({TOKEN_URL: "ftp://x/y"}, f"{TOKEN_URL}=ftp://x/y: expected a URL"),
        ({TOKEN_URL: "https://:9/"}, f"{TOKEN_URL}=https://:9/: expected a URL"),
        ({TOKEN_URL: "https://h:99999/"}, f"{TOKEN_URL}=https://h:99999/: expected a URL"),
        (
            {"sasl.jaas.config": f'{MODULE} clientId="a";'},
            "sasl.oauthbearer.client.credentials.client.secret is missing",
        ),
        (
            {"sasl.jaas.config": f"{MODULE};"},
            "sasl.oauthbearer.client.credentials.client.id is missing: expected it here",
        ),
        (
            {"sasl.login.callback.handler.class": "io.strimzi.A"},
            "sasl.login.callback.handler.class=io.strimzi.A: expected",
        ),
        ({"sasl.login.callback.handler.class": None}, "sasl.jaas.config: claim sub, whose it is, is missing"),
        ({"sasl.login.class": "a.B"}, "sasl.login.class=a.B: expected nothing"),
        ({"sasl.oauthbearer.jwt.retriever.class": "a.B"}, "sasl.oauthbearer.jwt.retriever.class=a.B: expected one of"),
        ({"sasl.oauthbearer.jwt.validator.class": "a.B"}, "sasl.oauthbearer.jwt.validator.class=a.B: expected one of"),
        ({"sasl.login.refresh.window.factor": "2"}, "sasl.login.refresh.window.factor=2: expected a number from 0.5"),
        ({"sasl.login.refresh.window.factor": "nan"}, "sasl.login.refresh.window.factor=nan: expected a number from"),
        (
            {"sasl.login.retry.backoff.ms": "20000"},
            "sasl.login.retry.backoff.max.ms is missing: expected at least 20000",
        ),
        ({"sasl.login.read.timeout.ms": "-1"}, "sasl.login.read.timeout.ms=-1: expected a whole number"),
        ({"sasl.oauthbearer.header.urlencode": "1"}, "sasl.oauthbearer.header.urlencode=1: expected true or false"),
        ({"sasl.oauthbearer.assertion.claim.iss": "me"}, "sasl.oauthbearer.assertion.private.key.file is missing"),
        (
            {"sasl.jaas.config": f'{MODULE} clientId="a" clientSecret="hunter2" extension_auth="x";'},
            "sasl.jaas.config: extension_auth: expected a name of letters, not auth",
        ),
    ],
)
def test_a_mistake_is_one_line_with_file_and_key(lines: dict[str, str | None], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        client(lines)
    assert caught.value.problems[0].startswith(f"c: {problem}"), caught.value.problems
    assert "hunter2" not in str(caught.value)


# ---------------------------------------------------------------- listeners

OWN = "listener.name.b.oauthbearer"
LISTENER = {
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    f"{OWN}.sasl.jaas.config": f"{MODULE};",
    f"{OWN}.sasl.server.callback.handler.class": VALIDATOR,
    "sasl.oauthbearer.jwks.endpoint.url": "https://idp.example/keys",
    "sasl.oauthbearer.expected.audience": "kafka, other",
    "listener.name.b.sasl.oauthbearer.expected.issuer": "https://idp.example",
    "sasl.oauthbearer.clock.skew.seconds": "5",
    f"{OWN}.sasl.oauthbearer.sub.claim.name": "azp",
}


def listener(lines: Mapping[str, str | None]) -> ListenerSettings:
    merged = {name: value for name, value in {**LISTENER, **lines}.items() if value is not None}
    return of_own_listener(merged, "s", "B", "SASL_PLAINTEXT", str, no_sections)  # type: ignore[arg-type]


def test_a_listener_takes_the_tokens_that_the_file_says() -> None:
    found = listener({}).tokens
    assert found is not None and found.jwks is not None and found.jwks.url == "https://idp.example/keys"
    assert (found.audiences, found.issuer, found.skew_ms) == (("kafka", "other"), "https://idp.example", 5_000)
    assert (found.sub_claim, found.scope_claim, found.refresh_ms) == ("azp", "scope", 3_600_000)


def test_a_listener_takes_unsigned_tokens_only_where_their_class_is_named() -> None:
    """Without it, Kafka takes the token of whoever says to be somebody."""
    key = f"{OWN}.sasl.server.callback.handler.class"
    with pytest.raises(ConfigError) as caught:
        listener({key: None})
    (line,) = caught.value.problems
    assert line.startswith(
        f"s: {key} is missing: expected {VALIDATOR}: without it Kafka takes unsigned tokens, of anybody"
    )
    unsecured = f"{PACKAGE}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
    options = f'{MODULE} unsecuredValidatorPrincipalClaimName="user" unsecuredValidatorRequiredScope="a b";'
    found = listener({key: unsecured, f"{OWN}.sasl.jaas.config": options}).tokens
    assert found is not None and (found.jwks, found.sub_claim, found.required_scope) == (None, "user", ("a", "b"))


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ({f"{OWN}.sasl.jaas.config": None}, "listener.name.b.oauthbearer.sasl.jaas.config is missing: expected"),
        (
            {f"{OWN}.sasl.server.callback.handler.class": "io.strimzi.V"},
            f"{OWN}.sasl.server.callback.handler.class=io.",
        ),
        ({"sasl.oauthbearer.jwks.endpoint.url": None}, "sasl.oauthbearer.jwks.endpoint.url is missing: expected a URL"),
        ({"sasl.oauthbearer.jwks.endpoint.refresh.ms": "0"}, "sasl.oauthbearer.jwks.endpoint.refresh.ms=0: expected a"),
        ({"sasl.oauthbearer.jwt.validator.class": "a.B"}, "sasl.oauthbearer.jwt.validator.class=a.B: expected one of"),
    ],
)
def test_what_would_let_others_in_than_in_kafka_is_refused(lines: dict[str, str | None], problem: str) -> None:
    if f"{OWN}.sasl.jaas.config" in lines:
        merged = {name: value for name, value in {**LISTENER, **lines}.items() if value is not None}
        with pytest.raises(ConfigError) as caught:
            of_own_listener(merged, "s", "B", "SASL_PLAINTEXT", str, dict)
    else:
        with pytest.raises(ConfigError) as caught:
            listener(lines)
    assert caught.value.problems[0].startswith(f"s: {problem}"), caught.value.problems


# ---------------------------------------------------------------- a node's file


def strimzi(tmp_path: Path, **changes: str) -> Path:
    """A broker's file as Strimzi writes it for a listener of type custom, with Kafka's own classes."""
    path = tmp_path / "server.properties"
    plane, clients = "listener.name.controlplane-9090.oauthbearer", "listener.name.oauth-9093.oauthbearer"
    trust = 'ssl.truststore.location="/opt/kafka/idp.crt" ssl.truststore.type="PEM"'
    module = f'{MODULE} clientId="kafka" clientSecret="${{strimzienv:SECRET}}" {trust};'
    lines = {
        "process.roles": "broker",
        "node.id": "1",
        "log.dirs": "/var/lib/kafka/data-0/kafka-log1,/var/lib/kafka/data-1/kafka-log1",
        "listeners": "OAUTH-9093://0.0.0.0:9093",
        "advertised.listeners": "OAUTH-9093://broker-1.example:9093",
        "controller.listener.names": "CONTROLPLANE-9090",
        "controller.quorum.bootstrap.servers": "controllers:9090",
        "listener.security.protocol.map": "CONTROLPLANE-9090:SASL_SSL,OAUTH-9093:SASL_SSL",
        "inter.broker.listener.name": "OAUTH-9093",
        "sasl.mechanism.controller.protocol": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        f"{plane}.sasl.jaas.config": module.replace("\\", "\\\\"),
        f"{plane}.sasl.login.callback.handler.class": HANDLER,
        f"{plane}.{TOKEN_URL}": "https://idp:8443/realms/kafka/token",
        "listener.name.oauth-9093.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.oauth-9093.ssl.keystore.location": "/opt/kafka/oauth.crt",
        "listener.name.oauth-9093.ssl.keystore.type": "PEM",
        f"{clients}.sasl.jaas.config": module,
        f"{clients}.sasl.server.callback.handler.class": VALIDATOR,
        f"{clients}.sasl.login.callback.handler.class": HANDLER,
        "sasl.oauthbearer.jwks.endpoint.url": "https://idp:8443/realms/kafka/certs",
        "sasl.oauthbearer.expected.audience": "kafka",
        "config.providers": "strimzienv",
        "config.providers.strimzienv.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        **changes,
    }
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return path


def test_a_file_of_strimzi_secures_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    config = load_config(strimzi(tmp_path))
    found = of_controllers(config).login
    assert found is not None and found.token is not None and found.token.endpoint is not None
    assert found.token.client_secret == "hunter2" and found.token.endpoint.url == "https://idp:8443/realms/kafka/token"
    tokens = of_node_listener(config, config.listeners[0]).tokens
    assert tokens is not None and tokens.jwks is not None and tokens.jwks.tls is not None
    assert tokens.jwks.tls.truststore is not None and tokens.jwks.tls.truststore.path == "/opt/kafka/idp.crt"


def test_strimzis_own_classes_are_named_as_what_kjbod_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    key = "listener.name.controlplane-9090.oauthbearer.sasl.login.callback.handler.class"
    strange = "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler"
    path = strimzi(tmp_path, **{key: strange})
    (line,) = problems(load_config(path))
    assert line == f"{path}: {key}={strange}: expected {HANDLER}; kjbod runs no Java classes"


def test_files_of_tokens_on_a_disk_that_is_watched_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    key = f"listener.name.controlplane-9090.oauthbearer.{TOKEN_URL}"
    inside = "/var/lib/kafka/data-1/kafka-log1/token"
    path = strimzi(tmp_path, **{key: f"file://{inside}"})
    (line,) = problems(load_config(path))
    assert line.startswith(f"{path}: {key}={inside}: expected a file outside the disks that are watched")
