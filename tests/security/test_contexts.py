"""TLS as Kafka's keys say, in real handshakes of a client with a server."""

import ssl
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import Struct

from kjbod.errors import ConfigError
from kjbod.security.contexts import client_context, expiry_of, files_of, openssl_name, server_context
from kjbod.security.stores import StoreError
from kjbod.security.tls_keys import NO_CLIENT, REQUIRED, WANTED, Store, Tls
from scripts.rig.certificates import NOT_AFTER, Authority, Certified

ECDSA_GCM = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"


class Met(Struct, frozen=True):
    """A client and a server after their handshake, and a message each way."""

    client: ssl.SSLObject
    server: ssl.SSLObject


def meet(client: Tls, server: Tls, host: str | None = "localhost") -> Met:
    """A handshake, through memory.

    Raises:
        ssl.SSLError: of whichever refuses.
    """
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    met = Met(
        client_context(client).wrap_bio(to_client, to_server, server_hostname=host),
        server_context(server).wrap_bio(to_server, to_client, server_side=True),
    )
    waiting = [met.client.do_handshake, met.server.do_handshake]
    for _ in range(10):
        for step in tuple(waiting):
            try:
                step()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(step)
    assert not waiting
    met.client.write(b"ping")
    assert met.server.read() == b"ping"
    met.server.write(b"pong")
    assert met.client.read() == b"pong"  # with TLS 1.3 a refusal of the client's certificate comes only here
    return met


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.make()


@pytest.fixture
def server(tmp_path: Path, authority: Authority) -> Tls:
    keystore = authority.leaf("localhost", "127.0.0.1").keystore(tmp_path, "server.pem")
    return Tls("server.properties", keystore, authority.truststore(tmp_path, "server-trusts.pem"))


@pytest.fixture
def client(tmp_path: Path, authority: Authority) -> Tls:
    return Tls("client.properties", truststore=authority.truststore(tmp_path, "client-trusts.pem"))


def altered(tls: Tls, **changes: object) -> Tls:
    values = {name: getattr(tls, name) for name in Tls.__struct_fields__}
    return Tls(**(values | changes))


# Whom a client believes


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_server_of_the_right_name_and_authority_is_believed(client: Tls, server: Tls, host: str) -> None:
    met = meet(client, server, host)
    assert met.client.version() == "TLSv1.3"
    assert met.client.selected_alpn_protocol() is None
    assert met.client.compression() is None


def test_a_server_of_another_authority_is_refused(tmp_path: Path, server: Tls) -> None:
    other = Tls("client.properties", truststore=Authority.make("Other CA").truststore(tmp_path))
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        meet(other, server)
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        meet(altered(other, checks_name=False), server)


def test_without_a_truststore_the_systems_authorities_are_believed(
    tmp_path: Path, authority: Authority, server: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        meet(Tls("client.properties"), server)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.truststore(tmp_path, "system.pem").path))
    meet(Tls("client.properties"), server)


def test_a_name_is_checked_unless_it_need_not_be(client: Tls, server: Tls) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        meet(client, server, "elsewhere")
    meet(altered(client, checks_name=False), server, "elsewhere")
    meet(altered(client, checks_name=False), server, None)


def test_an_expired_server_is_refused(tmp_path: Path, client: Tls, server: Tls, authority: Authority) -> None:
    expired = altered(server, keystore=authority.expired("localhost").keystore(tmp_path))
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        meet(client, expired)
    assert expiry_of(expired) == datetime(2021, 1, 1, tzinfo=UTC)


def test_a_chain_is_shown_to_a_client_that_knows_the_root_alone(
    tmp_path: Path, client: Tls, server: Tls, authority: Authority
) -> None:
    leaf = authority.authority().leaf("localhost")
    meet(client, altered(server, keystore=leaf.keystore(tmp_path)))
    meet(client, altered(server, keystore=leaf.pkcs12_keystore(tmp_path, "secret")))


def test_any_certificate_of_a_truststore_is_believed_as_in_java(
    tmp_path: Path, client: Tls, server: Tls, authority: Authority
) -> None:
    intermediate = authority.authority()
    leaf = intermediate.leaf("localhost")
    shown = altered(server, keystore=leaf.keystore(tmp_path))
    meet(altered(client, truststore=intermediate.truststore(tmp_path, "1.pem")), shown)
    meet(altered(client, truststore=leaf.truststore(tmp_path, "2.pem")), shown)


# Whom a server believes


@pytest.mark.parametrize("protocol", ["TLSv1.2", "TLSv1.3"])
def test_a_server_that_requires_clients_to_show_who_they_are(
    tmp_path: Path, client: Tls, server: Tls, authority: Authority, protocol: str
) -> None:
    strict = altered(server, client_auth=REQUIRED, protocols=(protocol,))
    right = authority.client("alice", "ops").keystore(tmp_path, "right.pem")
    wrong = Authority.make("Other CA").client("mallory").keystore(tmp_path, "wrong.pem")
    expired = authority.expired("alice").keystore(tmp_path, "expired.pem")
    peer = meet(altered(client, keystore=right), strict).server.getpeercert()
    assert peer is not None
    assert peer["subject"] == ((("organizationalUnitName", "ops"),), (("commonName", "alice"),))
    with pytest.raises(ssl.SSLError, match="peer did not return a certificate"):
        meet(client, strict)
    for refused in (wrong, expired):
        with pytest.raises(ssl.SSLCertVerificationError):
            meet(altered(client, keystore=refused), strict)


def test_a_server_that_asks_takes_a_client_with_none_and_refuses_a_wrong_one(
    tmp_path: Path, client: Tls, server: Tls, authority: Authority
) -> None:
    asking = altered(server, client_auth=WANTED)
    assert meet(client, asking).server.getpeercert() is None
    right = authority.client("alice").keystore(tmp_path, "right.pem")
    assert meet(altered(client, keystore=right), asking).server.getpeercert()
    wrong = Authority.make("Other CA").client("mallory").keystore(tmp_path, "wrong.pem")
    with pytest.raises(ssl.SSLCertVerificationError):
        meet(altered(client, keystore=wrong), asking)
    assert meet(altered(client, keystore=wrong), altered(server, client_auth=NO_CLIENT)).server.getpeercert() is None


def test_a_server_needs_a_keystore() -> None:
    with pytest.raises(ConfigError, match=r"s.properties: ssl.keystore.location: a listener with TLS needs a keystore"):
        server_context(Tls("s.properties"))


def test_a_store_that_cannot_be_used_makes_no_context(tmp_path: Path, server: Tls) -> None:
    gone = Store("ssl.truststore.location", path=str(tmp_path / "gone"))
    for make in (client_context, server_context):
        with pytest.raises(StoreError, match=r"server.properties: ssl.truststore.location=.*/gone: not readable"):
            make(altered(server, truststore=gone))


def test_a_server_does_not_renegotiate(server: Tls) -> None:
    assert server_context(server).options & ssl.OP_NO_RENEGOTIATION


# Versions and suites


def test_either_end_may_have_one_version_only(client: Tls, server: Tls) -> None:
    for version in ("TLSv1.2", "TLSv1.3"):
        assert meet(altered(client, protocols=(version,)), server).client.version() == version
        assert meet(client, altered(server, protocols=(version,))).client.version() == version
    with pytest.raises(ssl.SSLError, match=r"(?i)version|protocol"):
        meet(altered(client, protocols=("TLSv1.2",)), altered(server, protocols=("TLSv1.3",)))


@pytest.mark.parametrize("version", ["TLSv1", "TLSv1.1", "SSLv3", "SSLv2Hello", "tlsv1.2"])
def test_a_version_that_is_no_longer_safe_is_never_spoken(client: Tls, version: str) -> None:
    expected = rf"^client.properties: ssl.enabled.protocols: expected TLSv1.2 or TLSv1.3, not {version}$"
    with pytest.raises(ConfigError, match=expected):
        client_context(altered(client, protocols=(version,)))
    beside = client_context(altered(client, protocols=("TLSv1.2", version)))
    assert beside.minimum_version == beside.maximum_version == ssl.TLSVersion.TLSv1_2
    with pytest.raises(ConfigError, match=r"expected TLSv1.2 or TLSv1.3, not nothing"):
        client_context(altered(client, protocols=()))


def test_suites_of_tls_1_2_are_chosen_and_leave_tls_1_3_out_as_in_java(client: Tls, server: Tls) -> None:
    met = meet(altered(client, cipher_suites=(ECDSA_GCM,)), server)
    assert met.client.cipher() == ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLSv1.2", 256)
    other = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
    met = meet(client, altered(server, cipher_suites=(other, "TLS_EMPTY_RENEGOTIATION_INFO_SCSV")))
    assert met.client.cipher() == ("ECDHE-ECDSA-CHACHA20-POLY1305", "TLSv1.2", 256)
    with pytest.raises(ssl.SSLError):
        meet(altered(client, cipher_suites=(ECDSA_GCM,)), altered(server, cipher_suites=(other,)))


def test_suites_of_tls_1_3_alone_mean_tls_1_3(client: Tls, server: Tls) -> None:
    newer = altered(server, cipher_suites=("TLS_AES_256_GCM_SHA384",))
    assert meet(client, newer).client.version() == "TLSv1.3"
    with pytest.raises(ssl.SSLError):
        meet(altered(client, protocols=("TLSv1.2",)), newer)
    both = altered(server, cipher_suites=("TLS_AES_256_GCM_SHA384", ECDSA_GCM))
    assert meet(client, both).client.version() == "TLSv1.3"
    assert meet(altered(client, protocols=("TLSv1.2",)), both).client.version() == "TLSv1.2"


def test_suites_and_versions_that_do_not_go_together_are_told(client: Tls) -> None:
    with pytest.raises(ConfigError, match=r"^client.properties: ssl.cipher.suites: expected suites of TLSv1.3$"):
        client_context(altered(client, protocols=("TLSv1.3",), cipher_suites=(ECDSA_GCM,)))


@pytest.mark.parametrize(
    "suite",
    ["TLS_RSA_WITH_AES_128", "ECDHE-RSA-AES256-GCM-SHA384", "ALL", "TLS_AES_512_GCM_SHA384", "TLS_X_WITH_Y:ALL"],
)
def test_a_suite_that_openssl_does_not_have_is_left_out_and_told_where_no_other_is_left(
    client: Tls, suite: str
) -> None:
    with pytest.raises(ConfigError, match=f"^client.properties: ssl.cipher.suites: OpenSSL does not have {suite}$"):
        client_context(altered(client, cipher_suites=(suite,)))
    old = [one["name"] for one in client_context(altered(client, cipher_suites=(ECDSA_GCM, suite))).get_ciphers()]
    assert [name for name in old if not name.startswith("TLS_")] == ["ECDHE-ECDSA-AES256-GCM-SHA384"]


def test_names_of_suites_are_openssls_own(world: None) -> None:
    # ARIA and Camellia, which Java has not, pre-shared and anonymous keys have names by other rules.
    command = ["openssl", "ciphers", "-stdname", "-tls1_2", "ALL:!PSK:!SRP:!aNULL:!ARIA:!CAMELLIA"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    names = {line.split()[0]: line.split()[2] for line in lines if "_WITH_" in line}
    assert len(names) > 20
    assert {suite: openssl_name(suite) for suite in names} == names


# Files and time


def test_the_files_of_both_stores_are_watched(tmp_path: Path, server: Tls) -> None:
    assert files_of(server) == (f"{tmp_path}/server.pem", f"{tmp_path}/server-trusts.pem")
    assert files_of(altered(server, truststore=server.keystore)) == (f"{tmp_path}/server.pem",)
    assert files_of(Tls("x", Store("ssl.keystore.certificate.chain", pem="..."))) == ()


def test_the_expiry_is_that_of_our_own_certificate(tmp_path: Path, authority: Authority) -> None:
    leaf: Certified = authority.authority().leaf("localhost", not_after=datetime(2051, 2, 3, 4, 5, 6, tzinfo=UTC))
    assert expiry_of(Tls("x", leaf.keystore(tmp_path))) == datetime(2051, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert expiry_of(Tls("x", authority.leaf("a").pkcs12_keystore(tmp_path, "secret"))) == NOT_AFTER
    assert expiry_of(Tls("x")) is None


def test_nothing_of_a_private_key_stays_in_a_file_or_an_open_descriptor(server: Tls) -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    kept = server_context(server)
    assert sorted(Path("/proc/self/fd").iterdir())[: len(before)] == before
    assert kept.cert_store_stats()["x509"] == 1
