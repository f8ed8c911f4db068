"""Logins by Kerberos as files say them."""

import builtins
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kjbod.config.load import load_config
from kjbod.errors import ConfigError
from kjbod.security.keys import Kerberos, ListenerSettings
from kjbod.security.opening import client_security, problems
from kjbod.security.settings import of_client, of_own_listener

SUN = "com.sun.security.auth.module.Krb5LoginModule"
KEYTAB = 'useKeyTab=true storeKey=true keyTab="/etc/kafka.keytab"'
JITTER, PAUSE = "sasl.kerberos.ticket.renew.jitter", "sasl.kerberos.min.time.before.relogin"
BASE = {"security.protocol": "SASL_PLAINTEXT", "sasl.kerberos.service.name": "kafka"}


def client(options: str, lines: Mapping[str, str] | None = None, module: str = SUN) -> Kerberos:
    given = {**BASE, "sasl.jaas.config": f"{module} required {options};", **(lines or {})}
    found = of_client(given, "client.properties", str)
    assert found.login is not None and found.login.mechanism == "GSSAPI" and found.login.kerberos is not None
    return found.login.kerberos


def problem(options: str, lines: Mapping[str, str] | None = None, module: str = SUN) -> str:
    with pytest.raises(ConfigError) as caught:
        client(options, lines, module)
    (line,) = caught.value.problems
    return str(line)


def test_a_keytab_and_kafkas_keys_are_read() -> None:
    lines = {"sasl.kerberos.kinit.cmd": "/opt/kinit", "sasl.kerberos.ticket.renew.window.factor": "0.5",
             "sasl.kerberos.ticket.renew.jitter": "0.1", "sasl.kerberos.min.time.before.relogin": "1000"}  # fmt: skip
    where = "client.properties: sasl.jaas.config"
    assert client(f'{KEYTAB} principal="kafka/c1@A"', lines) == Kerberos(
        where, "kafka/c1@A", "/etc/kafka.keytab", False, None, "kafka", "/opt/kinit", 0.5, 0.1, 1000
    )
    found = client('useTicketCache=true ticketCache="FILE:/tmp/cc"')
    assert found == Kerberos(where, None, None, True, "/tmp/cc", "kafka")


def test_the_service_is_that_of_the_login_or_of_the_key() -> None:
    assert client("useTicketCache=true serviceName=k2", {"sasl.kerberos.service.name": ""}).service == "k2"
    assert client("useTicketCache=true serviceName=kafka").service == "kafka"
    assert "serviceName=k2: expected kafka, as sasl.kerberos" in problem("useTicketCache=true serviceName=k2")
    said = problem("useTicketCache=true", {"sasl.kerberos.service.name": ""})
    assert said.startswith(
        "client.properties: sasl.jaas.config: expected serviceName here, or sasl.kerberos.service.name"
    )


@pytest.mark.parametrize(
    ("options", "lines", "said"),
    [
        ("", {}, "sasl.jaas.config: expected useKeyTab=true or useTicketCache=true: nobody is here"),
        ('useKeyTab=true principal="a"', {}, "sasl.jaas.config: keyTab is missing, which useKeyTab=true needs"),
        (KEYTAB, {}, "sasl.jaas.config: principal is missing, which useKeyTab=true needs"),
        ("useTicketCache=true", {JITTER: "2"}, f"{JITTER}: expected a number from 0 to 1"),
        ("useTicketCache=true", {JITTER: "nan"}, f"{JITTER}: expected a number from 0 to 1"),
        ("useTicketCache=true", {PAUSE: "-1"}, f"{PAUSE}: expected a whole number from 0"),
        ("useTicketCache=true", {"sasl.login.class": "a.B"}, "sasl.login.class=a.B: expected nothing"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_file_and_key(options: str, lines: dict[str, str], said: str) -> None:
    line = problem(options, lines)
    assert line.startswith("client.properties: ") and said in line


def test_another_login_module_is_refused_and_its_options_are_not_guessed() -> None:
    line = problem(KEYTAB, module="com.ibm.security.auth.module.Krb5LoginModule")
    assert line.endswith(f"com.ibm.security.auth.module.Krb5LoginModule: expected {SUN}, as the mechanism is GSSAPI "
                         "(Kafka's default)")  # fmt: skip


# ---------------------------------------------------------------- listeners

LISTENER = "listener.name.b.gssapi.sasl.jaas.config"


def listener(lines: Mapping[str, str]) -> ListenerSettings:
    return of_own_listener(lines, "s", "B", "SASL_PLAINTEXT", str)


def test_a_listener_has_its_own_principal_and_rules() -> None:
    rules = {"listener.name.b.sasl.kerberos.principal.to.local.rules": "RULE:[1:$1]/L,DEFAULT"}
    found = listener({LISTENER: f'{SUN} required {KEYTAB} principal="kafka/c1@A";', **rules})
    assert found.mechanisms == {"GSSAPI": {}} and len(found.kerberos_rules) == 2
    assert found.kerberos == Kerberos(f"s: {LISTENER}", "kafka/c1@A", "/etc/kafka.keytab")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ({}, f"s: {LISTENER} is missing: expected the keytab of this host, by {SUN}"),
        ({LISTENER: f"{SUN} required useTicketCache=true;"}, f"s: {LISTENER}: expected useKeyTab=true: nobody"),
        (
            {LISTENER: f"{SUN} required {KEYTAB} principal=alice;"},
            "principal=alice: expected that of a server: ",
        ),
        ({LISTENER: f"com.ibm.security.auth.module.Krb5LoginModule required {KEYTAB};"}, f"expected {SUN}, as"),
        (
            {
                LISTENER: f'{SUN} required {KEYTAB} principal="k/c1";',
                "sasl.kerberos.principal.to.local.rules": "RULE:[1:$2]",
            },
            "s: sasl.kerberos.principal.to.local.rules=RULE:[1:$2]: RULE:[1:$2]: expected $0 to $1",
        ),
    ],
)
def test_a_mistake_of_a_listener_is_one_line(lines: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        listener(lines)
    (line,) = caught.value.problems
    assert said in line


# ---------------------------------------------------------------- what is needed


def server_properties(path: Path, keytab: str) -> Path:
    path.write_text(
        "process.roles=broker\nnode.id=1\nlog.dirs=/mnt/d1,/mnt/d2\nlisteners=PLAINTEXT://:9092\n"
        "controller.quorum.bootstrap.servers=h:1\ncontroller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=CONTROLLER:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
        "sasl.kerberos.service.name=kafka\n"
        f"listener.name.controller.gssapi.sasl.jaas.config={SUN} required useKeyTab=true "
        f'keyTab="{keytab}" principal=a;\n'
    )
    return path


def test_a_keytab_on_a_disk_that_is_watched_is_refused(tmp_path: Path) -> None:
    config = load_config(server_properties(tmp_path / "server.properties", "/mnt/d2/../d1/kafka.keytab"))
    (line,) = problems(config)
    assert "keyTab=/mnt/d2/../d1/kafka.keytab: expected a file outside the disks that are watched" in line


def test_the_krb5_conf_of_java_is_taken_where_the_library_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(server_properties(tmp_path / "server.properties", "/etc/kafka.keytab"))
    monkeypatch.setenv("KAFKA_OPTS", "-Dx=y -Djava.security.krb5.conf=/etc/kafka/krb5.conf")
    monkeypatch.setenv("KRB5_CONFIG", "/own/krb5.conf")
    assert problems(config) == [] and os.environ["KRB5_CONFIG"] == "/own/krb5.conf"
    monkeypatch.delenv("KRB5_CONFIG")
    assert problems(config) == [] and os.environ["KRB5_CONFIG"] == "/etc/kafka/krb5.conf"


def test_a_host_without_the_package_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "gssapi":
            raise ImportError("No module named 'gssapi'")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    said = "GSSAPI needs the Python package gssapi (No module named 'gssapi'): run scripts/setup --kerberos in "
    needs = f"{said}kjbod's clone"
    path = server_properties(tmp_path / "server.properties", "/etc/kafka.keytab")
    assert problems(load_config(path)) == [f"{path}: listener.name.controller.gssapi.sasl.jaas.config: {needs}"]
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in BASE.items()) + f"sasl.jaas.config={SUN} required "
                    "useTicketCache=true;\n")  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        client_security(file)
    assert str(caught.value) == f"{file}: sasl.jaas.config: {needs}"
