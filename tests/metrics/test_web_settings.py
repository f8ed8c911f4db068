"""Prometheus' web configuration file: what is taken, and what is refused in a line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from kjbod.errors import ConfigError
from kjbod.metrics.web_settings import WebSettings, read_web_settings
from kjbod.security.tls_keys import NO_CLIENT, REQUIRED, WANTED
from scripts.rig import prometheus

HASH: Final = "$2y$04$8/2ZiBq.QbcZnFWzpLzaiOEYRdTo5sRCsLwi11EWPfaivt545Elem"
"""Of ``secret``."""
TLS: Final = "tls_server_config:\n  cert_file: host.pem\n  key_file: /keys/host.key\n"


def read(text: str) -> WebSettings:
    return read_web_settings(text.encode(), "/etc/kjbod/web.yml")


def test_paths_are_relative_to_the_file() -> None:
    tls = read(f"{TLS}  client_ca_file: ca/all.pem\n  client_auth_type: RequireAndVerifyClientCert\n").tls
    assert tls is not None and tls.keystore is not None and tls.truststore is not None
    assert (tls.keystore.path, tls.keystore.key_path) == ("/etc/kjbod/host.pem", "/keys/host.key")
    assert tls.truststore.path == "/etc/kjbod/ca/all.pem"
    assert tls.protocols == ("TLSv1.2", "TLSv1.3")


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("", NO_CLIENT),
        ("NoClientCert", NO_CLIENT),
        ("RequestClientCert", NO_CLIENT),
        ("VerifyClientCertIfGiven", WANTED),
        ("RequireAndVerifyClientCert", REQUIRED),
    ],
)
def test_clients_show_certificates_as_prometheus_wants_them(kind: str, wanted: str) -> None:
    tls = read(f"{TLS}  client_auth_type: '{kind}'\n").tls
    assert tls is not None and tls.client_auth == wanted


@pytest.mark.parametrize(
    ("versions", "protocols"),
    [
        ("min_version: TLS13", ("TLSv1.3",)),
        ("min_version: TLS12", ("TLSv1.2", "TLSv1.3")),
        ("min_version: TLS10", ("TLSv1.2", "TLSv1.3")),
        ("max_version: TLS12", ("TLSv1.2",)),
        ("min_version: TLS11\n  max_version: TLS12", ("TLSv1.2",)),
    ],
)
def test_versions_are_those_that_openssl_speaks(versions: str, protocols: tuple[str, ...]) -> None:
    tls = read(f"{TLS}  {versions}\n").tls
    assert tls is not None and tls.protocols == protocols


@pytest.mark.parametrize(
    "text", ["", "# nothing", "{}", "tls_server_config: {}", "basic_auth_users: {}", "basic_auth_users:"]
)
def test_a_file_that_says_nothing_is_plain_text_for_everybody(text: str) -> None:
    assert read(text) == WebSettings()


def test_a_login_is_a_name_and_its_password() -> None:
    found = read(f"basic_auth_users:\n  scraper: {HASH}\n  other: {HASH}\n")
    assert found.knows("scraper", b"secret") and found.knows("other", b"secret")
    for name, password in (("scraper", b"Secret"), ("scraper", b""), ("nobody", b"secret"), ("", b"secret")):
        assert not found.knows(name, password)
    assert not found.knows("scraper", b"\0" * 200)
    assert (
        len({found.digest("scraper", b"secret"), found.digest("scraper", b"s"), found.digest("other", b"secret")}) == 3
    )


REFUSED: dict[str, tuple[str, str]] = {
    "no YAML": ("tls_server_config: [", "expected YAML, as Prometheus' web configuration file has it (line 1)"),
    "not UTF-8": ("a: \udc80", "expected YAML"),
    "a list": ("- a\n", "Expected `object`, got `array`"),
    "a text": ("hello", "Expected `object`, got `str`"),
    "an unknown part": ("tls_config: {}", "unknown field `tls_config`"),
    "an unknown key": (f"{TLS}  certfile: x\n", "unknown field `certfile` - at `$.tls_server_config`"),
    "names of clients": (f"{TLS}  client_allowed_sans: [a]\n", "unknown field `client_allowed_sans`"),
    "curves": (f"{TLS}  curve_preferences: [X25519]\n", "unknown field `curve_preferences`"),
    "headers": ("http_server_config: {headers: {X-Frame-Options: deny}}", "unknown field `headers`"),
    "no key": ("tls_server_config: {cert_file: a}", "tls_server_config.key_file is missing"),
    "no certificate": ("tls_server_config: {key_file: a}", "tls_server_config.cert_file is missing"),
    "only who may come": ("tls_server_config: {client_ca_file: a}", "tls_server_config.cert_file is missing"),
    "any certificate": (f"{TLS}  client_auth_type: RequireAnyClientCert\n", "client_auth_type=RequireAnyClientCert: "),
    "a misspelt client": (f"{TLS}  client_auth_type: required\n", "client_auth_type=required: expected one of"),
    "authorities without effect": (f"{TLS}  client_ca_file: ca.pem\n", "client_ca_file has no effect without"),
    "a misspelt version": (f"{TLS}  min_version: TLSv1.2\n", "min_version=TLSv1.2: expected one of TLS10"),
    "versions of old": (f"{TLS}  max_version: TLS11\n", "expected TLS12 or TLS13 between"),
    "a password": ("basic_auth_users: {a: secret}", "basic_auth_users.a: expected a bcrypt hash, as htpasswd -nBC 10"),
    "another hash": ("basic_auth_users: {a: $apr1$x$y}", "basic_auth_users.a: expected a bcrypt hash"),
    "half a hash": (f"basic_auth_users: {{a: {HASH[:-1]}}}", "basic_auth_users.a: expected a bcrypt hash"),
    "a hash that takes a minute": (f"basic_auth_users: {{a: {HASH.replace('$04$', '$20$')}}}", "of cost 4 to 14"),
    "a number": ("basic_auth_users: {a: 7}", "Expected `str`, got `int`"),
    "nobody's": (f"basic_auth_users: {{'': {HASH}}}", "Expected `str` of length >= 1"),
    "a name that no client can send": (f"basic_auth_users: {{'a:b': {HASH}}}", "expected a name without a colon"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_held_to_is_refused_in_a_line_without_a_secret(name: str) -> None:
    text, reason = REFUSED[name]
    with pytest.raises(ConfigError) as refused:
        read_web_settings(text.encode(errors="surrogateescape"), "/etc/kjbod/web.yml")
    told = str(refused.value)
    assert all(line.startswith("/etc/kjbod/web.yml: ") for line in told.splitlines()) and reason in told, told
    assert HASH[8:] not in told and "secret" not in told


@pytest.mark.usefixtures("world")
def test_prometheus_own_tool_takes_the_same_file(
    machine_can: Callable[[Callable[[], None]], None], tmp_path: Path
) -> None:
    machine_can(prometheus.require)
    users: dict[str, Any] = {"basic_auth_users": {"scraper": HASH}, "http_server_config": {"http2": False}}
    file = tmp_path / "web.yml"
    file.write_text(json.dumps(users))
    code, said = prometheus.promtool("check", "web-config", file)
    assert code == 0, said
    assert read_web_settings(file.read_bytes(), str(file)).users == {"scraper": HASH.encode()}
