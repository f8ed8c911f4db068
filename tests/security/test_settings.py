"""Security as files say it: which keys count, those of a listener before the general ones, and what is named that is
missing or wrong, without a secret."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from kjbod.config import load_config
from kjbod.errors import ConfigError
from kjbod.security.jaas import parse_sections
from kjbod.security.keys import ChannelSettings, ListenerSettings, Login
from kjbod.security.opening import problems as problems_of
from kjbod.security.settings import of_client, of_listener, of_own_listener
from kjbod.security.tls_keys import JKS, PEM

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
KEY = "listener.name.controller.scram-sha-512.sasl.jaas.config"
LOGIN = f'{SCRAM} username="kafka" password="hunter2";'


def no_sections() -> Mapping[str, object]:
    raise AssertionError("nobody needs the JAAS file")


def node(lines: Mapping[str, str], protocol: str = "SASL_SSL", sections: str | None = None) -> ChannelSettings:
    """Settings of connections to controllers; ``sections``: text of the JAAS file."""
    mechanism = {"sasl.mechanism.controller.protocol": "SCRAM-SHA-512"}
    found = no_sections if sections is None else lambda: parse_sections(sections)
    return of_listener(
        {**mechanism, **lines}, "server.properties", "CONTROLLER", protocol, "sasl.mechanism.controller.protocol", str,
        found,  # type: ignore[arg-type]
    )  # fmt: skip


def problems(lines: Mapping[str, str], protocol: str = "SASL_SSL", sections: str | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        node(lines, protocol, sections)
    assert "hunter2" not in str(caught.value)
    return caught.value.problems


def client(lines: Mapping[str, str]) -> ChannelSettings:
    return of_client(lines, "client.properties", str, no_sections)  # type: ignore[arg-type]


def test_what_is_of_the_listener_comes_before_what_is_of_all() -> None:
    found = node(
        {
            KEY: LOGIN,
            "ssl.truststore.location": "/all.p12",
            "listener.name.controller.ssl.truststore.location": "/own.pem",
            "listener.name.controller.ssl.truststore.type": "pem",
            "ssl.truststore.password": "hunter2",
        }
    )
    assert found.tls is not None and found.tls.truststore is not None and found.login is not None
    assert (found.tls.truststore.path, found.tls.truststore.kind) == ("/own.pem", PEM)
    assert found.tls.truststore.key == "listener.name.controller.ssl.truststore.location"
    assert (found.login.mechanism, found.login.username, found.login.password) == ("SCRAM-SHA-512", "kafka", "hunter2")
    assert "hunter2" not in repr(found)


@pytest.mark.parametrize(("option", "is_token"), [("true", True), ("TRUE", True), ("false", False), ("yes", False)])
def test_a_login_by_a_delegation_token_is_what_kafka_takes_for_one(option: str, is_token: bool) -> None:
    found = node({KEY: f'{SCRAM} tokenauth="{option}" username="an id" password="aG1hYw==";'})
    assert found.login == Login("SCRAM-SHA-512", "an id", "aG1hYw==", is_token)


def test_plain_knows_no_tokens_as_in_kafka() -> None:
    lines = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    found = client({**lines, "sasl.jaas.config": f'{PLAIN} tokenauth="true" username="a" password="hunter2";'})
    assert found.login == Login("PLAIN", "a", "hunter2")


def test_a_login_without_the_prefix_of_the_listener_is_not_taken_as_kafka_does_not() -> None:
    sections = f'KafkaServer {{ {SCRAM} username="section" password="hunter2"; }};'
    lines = {"scram-sha-512.sasl.jaas.config": LOGIN, "sasl.jaas.config": LOGIN}
    found = node(lines, sections=sections)
    assert found.login is not None and found.login.username == "section"
    (problem,) = problems(lines, sections="")
    assert problem.startswith(f"server.properties: {KEY} is missing: expected the login of SCRAM-SHA-512")


def test_the_section_of_the_listener_comes_before_that_of_all() -> None:
    sections = "".join(
        f'{name} {{ {PLAIN} username="p" password="x"; {SCRAM} username="{name}" password="x"; }};'
        for name in ("KafkaServer", "controller.KafkaServer")
    )
    found = node({}, sections=sections)
    assert found.login is not None and found.login.username == "controller.KafkaServer"


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ({KEY: "hunter2"}, f"{KEY}: expected a JAAS login module: "),
        ({KEY: f'{LOGIN} {PLAIN} username="a" password="hunter2";'}, f"{KEY}: expected one JAAS login module, not 2"),
        ({KEY: f'{SCRAM} username="a";'}, f"{KEY}: password is missing, which SCRAM-SHA-512 needs"),
        ({KEY: f'{SCRAM} password="hunter2";'}, f"{KEY}: username is missing, which SCRAM-SHA-512 needs"),
        (
            {"sasl.mechanism.controller.protocol": "DIGEST-MD5"},
            "sasl.mechanism.controller.protocol=DIGEST-MD5: expected PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
        ),
        ({KEY: LOGIN, "ssl.truststore.location": ""}, "ssl.truststore.location=: expected the path of a file"),
        ({KEY: LOGIN, "ssl.keystore.location": " "}, "ssl.keystore.location= : expected the path of a file"),
        ({KEY: LOGIN, "ssl.keystore.type": "BKS", "ssl.keystore.location": "/k"}, "ssl.keystore.type=BKS: "),
        ({KEY: LOGIN, "ssl.keystore.key": "hunter2"}, "ssl.keystore.certificate.chain is missing: "),
        ({KEY: LOGIN, "ssl.engine.factory.class": "a.B"}, "ssl.engine.factory.class=a.B: "),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_file_and_key(lines: dict[str, str], problem: str) -> None:
    (line,) = problems(lines)
    assert line.startswith(f"server.properties: {problem}"), line


def test_what_the_protocol_does_not_need_is_not_looked_at() -> None:
    wrong = {KEY: "hunter2", "ssl.truststore.location": "", "sasl.login.class": "a.B"}
    assert node(wrong, "PLAINTEXT") == ChannelSettings()
    assert node({**wrong, "ssl.truststore.location": "/t"}, "SSL").login is None
    assert client({"sasl.jaas.config": "hunter2", "ssl.keystore.type": "no"}) == ChannelSettings()


def test_a_client_says_its_protocol_mechanism_and_login() -> None:
    lines = {"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN"}
    found = client({**lines, "sasl.jaas.config": f'{PLAIN} username="a" password="hunter2";'})
    assert found.protocol == "SASL_SSL" and found.login is not None and found.login.mechanism == "PLAIN"
    assert found.tls is not None and found.tls.checks_name and found.tls.truststore is None
    assert client({"security.protocol": "SSL", "ssl.keystore.location": "k"}).tls.keystore.kind == JKS  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"security.protocol=TLS: expected one of PLAINTEXT, SSL"):
        client({"security.protocol": "TLS"})


def test_names_are_not_checked_only_where_the_file_says_so() -> None:
    lines = {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""}
    assert client(lines).tls.checks_name is False  # type: ignore[union-attr]


@pytest.mark.parametrize(("roles", "refused"), [("broker", 2), ("controller", 0)])
def test_stores_on_a_disk_that_is_watched_are_refused(tmp_path: Path, roles: str, refused: int) -> None:
    """A thread that waits for a disk that hangs keeps a killed process alive."""
    path = tmp_path / "server.properties"
    listeners = "CONTROLLER://:9093" if roles == "controller" else "PLAINTEXT://:9092"
    path.write_text(
        f"process.roles={roles}\nnode.id=1\nlog.dirs=/mnt/d1,/mnt/d2\nlisteners={listeners}\n"
        "controller.quorum.bootstrap.servers=h:1\ncontroller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=CONTROLLER:SSL,PLAINTEXT:PLAINTEXT\n"
        "ssl.keystore.location=/mnt/d1/a/../k.p12\nssl.truststore.location=/mnt/d2/t.p12\n"
    )
    found = problems_of(load_config(path))
    assert len(found) == refused
    assert all("expected a file outside the disks that are watched, not below /mnt/d" in line for line in found)


# ---------------------------------------------------------------- listeners of our own

USERS = f'{PLAIN} username="kafka" password="x" user_alice="hunter2";'


def listener(lines: Mapping[str, str], protocol: str = "SASL_PLAINTEXT") -> ListenerSettings:
    base = {
        "listener.name.b.plain.sasl.jaas.config": USERS,
        "sasl.enabled.mechanisms": "DIGEST-MD5,PLAIN,SCRAM-SHA-512",
    }
    return of_own_listener({**base, **lines}, "s", "B", protocol, str, no_sections)  # type: ignore[arg-type]


def test_a_listener_has_the_mechanisms_of_the_file_that_kjbod_has_and_the_users_of_plain() -> None:
    found = listener({})
    assert found.mechanisms == {"PLAIN": {"alice": "hunter2"}, "SCRAM-SHA-512": {}} and "hunter2" not in repr(found)
    assert found.reauthentication_ms == {} and found.refusal_delay_ms == 100


def test_how_long_a_login_holds_may_be_said_for_a_mechanism_a_listener_or_all() -> None:
    key = "connections.max.reauth.ms"
    assert listener({key: "5000"}).reauthentication_ms == {"PLAIN": 5000, "SCRAM-SHA-512": 5000}
    own = {key: "5000", f"listener.name.b.{key}": "4000", f"listener.name.b.plain.{key}": "1000"}
    assert listener(own).reauthentication_ms == {"PLAIN": 1000, "SCRAM-SHA-512": 4000}


@pytest.mark.parametrize(
    ("lines", "protocol", "problem"),
    [
        ({"listener.name.b.plain.sasl.server.callback.handler.class": "a.Ldap"}, "SASL_PLAINTEXT", "plain.sasl.server"),
        ({"principal.builder.class": "a.Builder"}, "SASL_PLAINTEXT", "principal.builder.class=a.Builder: expected org"),
        ({"listener.name.b.plain.sasl.jaas.config": f'{SCRAM} username="a";'}, "SASL_PLAINTEXT", "expected the users"),
        ({"sasl.enabled.mechanisms": "CRAM"}, "SASL_PLAINTEXT", "sasl.enabled.mechanisms=CRAM: expected one of"),
        ({}, "SSL", "ssl.keystore.location is missing: expected a keystore, as the listener B has TLS"),
        ({"connections.max.reauth.ms": "soon"}, "SASL_PLAINTEXT", "connections.max.reauth.ms=soon: expected a whole"),
    ],
)
def test_what_would_let_others_in_than_in_kafka_is_refused(lines: dict[str, str], protocol: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        listener(lines, protocol)
    assert problem in str(caught.value) and "hunter2" not in str(caught.value)


def test_who_logs_in_needs_a_certificate_only_where_that_is_said_of_the_listener() -> None:
    stores = {"ssl.keystore.location": "/k", "ssl.client.auth": "required"}
    assert listener(stores, "SASL_SSL").tls.client_auth == "none"  # type: ignore[union-attr]
    assert listener(stores, "SSL").tls.client_auth == "required"  # type: ignore[union-attr]
    own = {**stores, "listener.name.b.ssl.client.auth": "requested"}
    assert listener(own, "SASL_SSL").tls.client_auth == "requested"  # type: ignore[union-attr]
