"""Keystores and truststores: all kinds that Kafka reads, and a line that says what is wrong with one."""

import base64
import dataclasses
import os
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

from kjbod.errors import EXIT_CONFIG, EXIT_FAILURE
from kjbod.security.stores import STORE_BYTES_MAX, StoreError, read_authorities, read_identity, why_empty_for_java
from kjbod.security.tls_keys import JKS, PEM, PKCS12, Store
from kjbod.wire.disconnections import not_believed
from scripts.rig.certificates import Authority, Certified
from scripts.rig.kafka import KafkaKit

SOURCE = "server.properties"
KEYSTORE, TRUSTSTORE = "ssl.keystore.location", "ssl.truststore.location"
SECRET = "store-secret"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.make()


@pytest.fixture(scope="module")
def leaf(authority: Authority) -> Certified:
    """A leaf behind an intermediate authority."""
    return authority.authority().leaf("localhost")


def keystore(path: Path, content: str | bytes, kind: str = PEM, **given: str | None) -> Store:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return Store(KEYSTORE, kind, str(path), **given)


def problem_of_identity(store: Store) -> str:
    with pytest.raises(StoreError) as caught:
        read_identity(store, SOURCE)
    return told(str(caught.value), store)


def problem_of_authorities(store: Store) -> str:
    with pytest.raises(StoreError) as caught:
        read_authorities(store, SOURCE)
    return told(str(caught.value), store)


def told(line: str, store: Store) -> str:
    """The end of a message of one line without secrets, after source, key and file."""
    assert "\n" not in line
    assert not any(secret in line for secret in (store.password, store.key_password) if secret)
    return line.removeprefix(f"{SOURCE}: {store.key}={store.path}: ")


def flat(pem: str) -> str:
    return " ".join(pem.split("\n"))


# PEM


@pytest.mark.parametrize("key_first", [True, False])
def test_a_pem_keystore_has_its_key_before_or_after_its_chain(tmp_path: Path, leaf: Certified, key_first: bool) -> None:
    text = leaf.key_pem() + leaf.chain_pem if key_first else leaf.chain_pem + leaf.key_pem()
    identity = read_identity(keystore(tmp_path / "k.pem", text), SOURCE)
    assert identity.chain_pem.decode() == leaf.chain_pem
    assert identity.key_pem.decode() == leaf.key_pem()


SERVER_AUTH = bytes.fromhex("300c300a06082b06010505070301")
"""What OpenSSL writes behind a certificate that is trusted for servers (``X509_CERT_AUX``)."""
ALIAS = bytes.fromhex("30040c026361")
REJECTED = bytes.fromhex("300ea00c300a06082b060105050703")


def trusted(pem: str, behind: bytes, label: str = "TRUSTED CERTIFICATE") -> str:
    """A certificate as ``openssl x509 -trustout`` writes it."""
    text = base64.encodebytes(ssl.PEM_cert_to_DER_cert(pem) + behind).decode()
    return f"-----BEGIN {label}-----\n{text}-----END {label}-----\n"


@pytest.mark.parametrize("behind", [b"", SERVER_AUTH, ALIAS, REJECTED, b"\x05\x00", b"\xff" * 70])
def test_a_trusted_certificate_of_openssl_is_a_certificate_as_for_java(
    tmp_path: Path, authority: Authority, leaf: Certified, behind: bytes
) -> None:
    path = tmp_path / "t.pem"
    text = trusted(authority.pem, behind)
    assert read_authorities(keystore(path, text), SOURCE) == authority.pem
    assert read_authorities(keystore(path, f"# a name\n{text}{leaf.pem}{text}"), SOURCE) == (
        authority.pem + leaf.pem + authority.pem
    )
    inline = Store("ssl.truststore.certificates", PEM, pem=flat(text))
    assert read_authorities(inline, SOURCE) == authority.pem
    whole = leaf.key_pem() + trusted(leaf.pem, behind) + leaf.chain_pem.removeprefix(leaf.pem)
    assert read_identity(keystore(path, whole), SOURCE).chain_pem.decode() == leaf.chain_pem
    old = trusted(authority.pem, b"", "X509 CERTIFICATE")
    assert read_authorities(keystore(path, old), SOURCE) == authority.pem


@pytest.mark.parametrize("body", ["", "MA==", "MIA=", "MIIQ", "MIL/////", "A", "MIID"])
def test_a_trusted_certificate_that_is_cut_is_told(tmp_path: Path, body: str) -> None:
    text = f"-----BEGIN TRUSTED CERTIFICATE-----\n{body}\n-----END TRUSTED CERTIFICATE-----\n"
    assert problem_of_authorities(keystore(tmp_path / "t.pem", text)).startswith("certificate not readable (")


def self_made(key: Any, digest: Any = None, issuer: Any = None, issuer_key: Any = None, name: str = "x") -> Any:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    start = datetime(2024, 1, 1, tzinfo=UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer.subject if issuer else subject)
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(start)
        .not_valid_after(start + timedelta(9_999))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(issuer_key or key, digest or hashes.SHA256())
    )


def pem_of(certificate: Any, key: Any = None) -> str:
    text: bytes = certificate.public_bytes(Encoding.PEM)
    if key is not None:
        text += key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return text.decode()


@pytest.mark.parametrize("kind", ["rsa1024", "rsa1536", "rsa1920", "ec192", "dsa1024"])
def test_a_key_that_is_too_small_is_told_with_what_to_do(tmp_path: Path, kind: str) -> None:
    words = "its key is too small for OpenSSL, for RSA below 2,048 bits"
    made: Any
    if kind.startswith("rsa"):
        made = rsa.generate_private_key(65537, int(kind[3:]))
    else:
        made = dsa.generate_private_key(1024) if kind == "dsa1024" else ec.generate_private_key(ec.SECP192R1())
    content = pem_of(self_made(made), made)
    line = problem_of_identity(keystore(tmp_path / "k.pem", content))
    assert line.startswith(words) and "make a key of 2,048 bits or more (EC: 256)" in line
    packed = pkcs12.serialize_key_and_certificates(b"k", made, self_made(made), None, BestAvailableEncryption(b"x" * 8))
    line = problem_of_identity(keystore(tmp_path / "k.p12", packed, PKCS12, password="x" * 8))
    assert line.startswith(words)


def test_an_authority_that_is_too_weak_is_told_with_what_to_do(tmp_path: Path) -> None:
    key, small = ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 1024)
    root = self_made(small, name="root")
    chain = pem_of(self_made(key, None, root, small), key) + pem_of(root)
    line = problem_of_identity(keystore(tmp_path / "k.pem", chain))
    assert line.startswith("the key of an authority in its chain is too small") and "2,048 bits or more" in line


@pytest.mark.parametrize(("code", "word"), [(66, "2,048"), (67, "2,048"), (68, "SHA-256")])
def test_a_peer_whose_certificate_is_too_weak_is_told_with_what_it_needs(code: int, word: str) -> None:
    error = ssl.SSLCertVerificationError("x")
    error.verify_code, error.verify_message = code, "EE certificate key too weak"
    line = str(not_believed("b1:9093", error))
    assert line.startswith("the certificate of b1:9093 ") and "it needs one " in line and word in line


def test_words_around_pem_are_passed_over(tmp_path: Path, leaf: Certified) -> None:
    text = f"Bag Attributes\n    friendlyName: a: b\n{leaf.key_pem()}subject=CN = x\n{leaf.chain_pem}"
    assert read_identity(keystore(tmp_path / "k.pem", text), SOURCE).chain_pem.decode() == leaf.chain_pem


def test_an_encrypted_pem_key_is_read_with_its_password(tmp_path: Path, leaf: Certified) -> None:
    text = leaf.key_pem(SECRET) + leaf.chain_pem
    identity = read_identity(keystore(tmp_path / "k.pem", text, key_password=SECRET), SOURCE)
    identity.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    assert SECRET not in repr(identity)
    assert "KEY" not in repr(identity)
    wrong = problem_of_identity(keystore(tmp_path / "k.pem", text, key_password="wrong-one"))
    assert wrong == "wrong password (ssl.key.password)"
    missing = problem_of_identity(keystore(tmp_path / "k.pem", text))
    assert missing == "key encrypted and ssl.key.password missing"


def test_pem_in_the_properties_may_be_one_line(leaf: Certified, authority: Authority) -> None:
    store = Store("ssl.keystore.certificate.chain", PEM, pem=flat(leaf.chain_pem), key_pem=flat(leaf.key_pem()))
    identity = read_identity(store, SOURCE)
    assert (identity.chain_pem.decode(), identity.key_pem.decode()) == (leaf.chain_pem, leaf.key_pem())
    both = authority.pem + Authority.make("Other CA").pem
    assert read_authorities(Store("ssl.truststore.certificates", PEM, pem=flat(both)), SOURCE) == both


def test_a_mistake_in_the_properties_names_the_key_that_has_it(leaf: Certified) -> None:
    prefix = "listener.name.ssl.ssl."
    store = Store(f"{prefix}keystore.certificate.chain", PEM, pem=leaf.chain_pem, key_pem="no PEM")
    assert problem_of_identity(store) == f"{SOURCE}: {prefix}keystore.key: no private key in it"
    store = Store(f"{prefix}keystore.certificate.chain", PEM, pem="no PEM", key_pem=leaf.key_pem())
    assert problem_of_identity(store) == f"{SOURCE}: {prefix}keystore.certificate.chain: no certificate in it"
    store = Store(f"{prefix}keystore.certificate.chain", PEM, pem=leaf.chain_pem, key_pem=leaf.key_pem("a"))
    expected = f"{SOURCE}: {prefix}keystore.key: key encrypted and {prefix}key.password missing"
    assert problem_of_identity(store) == expected


def test_a_pem_keystore_lacks_nothing(tmp_path: Path, leaf: Certified, authority: Authority) -> None:
    path = tmp_path / "k.pem"
    assert problem_of_identity(keystore(path, leaf.chain_pem)) == "no private key in it"
    assert problem_of_identity(keystore(path, leaf.key_pem())) == "no certificate in it"
    two = leaf.key_pem() * 2 + leaf.chain_pem
    assert problem_of_identity(keystore(path, two)) == "expected one private key, and it has 2"
    other = leaf.key_pem() + authority.leaf("localhost").chain_pem
    assert problem_of_identity(keystore(path, other)) == "key does not match certificate"


def test_damaged_pem_is_told(tmp_path: Path, leaf: Certified) -> None:
    body = leaf.pem.replace("MII", "MIJ", 1)
    assert problem_of_identity(keystore(tmp_path / "k", leaf.key_pem() + body)).startswith("certificate not readable (")
    assert problem_of_authorities(keystore(tmp_path / "k", body)).startswith("certificate not readable (")
    key = leaf.key_pem().replace("MIG", "MIJ", 1)
    assert problem_of_identity(keystore(tmp_path / "k", key + leaf.pem)).startswith("private key or certificate not us")


def test_a_truststore_without_a_certificate_is_told(tmp_path: Path, leaf: Certified) -> None:
    assert problem_of_authorities(keystore(tmp_path / "t.pem", leaf.key_pem())) == "no certificate in it"


def test_a_user_of_pem_loads_no_cryptography(world: None, tmp_path: Path, leaf: Certified) -> None:
    store = leaf.keystore(tmp_path)
    code = f"""
import sys
from kjbod.security.contexts import expiry_of, server_context
from kjbod.security.tls_keys import PEM, Store, Tls
tls = Tls("x", Store("k", PEM, {store.path!r}))
server_context(tls), expiry_of(tls)
assert "cryptography" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# Files


def test_a_file_that_cannot_be_read_is_told_in_the_systems_words(tmp_path: Path) -> None:
    gone = Store(KEYSTORE, PKCS12, str(tmp_path / "gone.p12"), SECRET)
    assert problem_of_identity(gone) == "not readable: No such file or directory"
    assert problem_of_authorities(Store(TRUSTSTORE, PEM, str(tmp_path))) == "not readable: Is a directory"
    os.mkfifo(tmp_path / "fifo")
    assert problem_of_authorities(Store(TRUSTSTORE, PEM, str(tmp_path / "fifo"))) == "not readable: Not a regular file"
    assert problem_of_identity(Store(KEYSTORE, JKS)).endswith("no file is named (ssl.keystore.location)")


def test_no_more_is_read_than_a_store_may_have(tmp_path: Path) -> None:
    path = tmp_path / "k.pem"
    with open(path, "wb") as file:
        file.truncate(STORE_BYTES_MAX + 1)
    assert problem_of_identity(Store(KEYSTORE, PEM, str(path))).startswith("not readable: ")


def test_a_file_of_another_type_is_told_with_the_key_of_the_type(tmp_path: Path, leaf: Certified) -> None:
    pem = keystore(tmp_path / "k.pem", leaf.key_pem() + leaf.chain_pem, JKS, password=SECRET)
    assert problem_of_identity(pem) == "not a keystore (PEM? ssl.keystore.type=PEM)"
    p12 = keystore(tmp_path / "k.p12", leaf.pkcs12(SECRET), PEM)
    assert problem_of_identity(p12) == "not PEM, but a keystore of Java (ssl.keystore.type)"
    assert problem_of_identity(keystore(tmp_path / "k", b"\0" * 99, PKCS12, password=SECRET)) == "not a keystore"
    jceks = keystore(tmp_path / "k", b"\xce" * 99, JKS, password=SECRET)
    assert problem_of_identity(jceks) == "a JCEKS keystore: expected PKCS12, JKS or PEM"


# PKCS12


@pytest.mark.parametrize("kind", [PKCS12, JKS])
def test_a_pkcs12_file_is_read_whichever_of_javas_types_is_given(tmp_path: Path, leaf: Certified, kind: str) -> None:
    store = keystore(tmp_path / "k.p12", leaf.pkcs12(SECRET), kind, password=SECRET, key_password=SECRET)
    identity = read_identity(store, SOURCE)
    assert identity.chain_pem.decode().startswith(leaf.chain_pem)
    assert identity.key_pem.decode() == leaf.key_pem()


def test_the_chain_of_a_pkcs12_file_is_in_order_whatever_the_files_is(tmp_path: Path, leaf: Certified) -> None:
    turned = Certified(leaf.certificate, leaf.key, leaf.issuers[::-1])
    identity = read_identity(keystore(tmp_path / "k.p12", turned.pkcs12(SECRET), PKCS12, password=SECRET), SOURCE)
    assert identity.chain_pem.decode().startswith(leaf.chain_pem)


def test_a_password_of_a_pkcs12_file_that_is_wrong_or_missing_is_named_with_its_key(
    tmp_path: Path, leaf: Certified
) -> None:
    path, content = tmp_path / "k.p12", leaf.pkcs12(SECRET)
    wrong = problem_of_identity(keystore(path, content, PKCS12, password="wrong-one"))
    assert wrong == "wrong password, or the file is damaged or incomplete (ssl.keystore.password)"
    assert problem_of_identity(keystore(path, content, PKCS12)) == "password missing (ssl.keystore.password)"
    trusted = keystore(path, leaf.trusted_pkcs12(SECRET), PKCS12, password="wrong-one")
    assert problem_of_authorities(trusted) == (
        "wrong password, or the file is damaged or incomplete (ssl.truststore.password)"
    )
    differ = problem_of_identity(keystore(path, content, PKCS12, password=SECRET, key_password="other-one"))
    expected = "ssl.key.password and ssl.keystore.password differ: a PKCS12 keystore has one password"
    assert differ == expected


def test_a_pkcs12_truststore_is_no_keystore(tmp_path: Path, authority: Authority) -> None:
    store = keystore(tmp_path / "t.p12", authority.trusted_pkcs12(SECRET), PKCS12, password=SECRET)
    assert read_authorities(store, SOURCE) == authority.pem
    assert problem_of_identity(store) == "no private key in it"


def test_a_keystore_as_truststore_trusts_its_own_certificate_alone(tmp_path: Path, leaf: Certified) -> None:
    store = keystore(tmp_path / "k.p12", leaf.pkcs12(SECRET), PKCS12, password=SECRET)
    assert read_authorities(store, SOURCE) == leaf.pem


def test_a_host_without_cryptography_is_told_what_it_needs(
    tmp_path: Path, leaf: Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    store = keystore(tmp_path / "k.p12", leaf.pkcs12(SECRET), PKCS12, password=SECRET)
    assert "need the Python package cryptography" in problem_of_identity(store)


def test_pkcs12_of_openssl_is_read(world: None, tmp_path: Path, leaf: Certified) -> None:
    both = tmp_path / "both.pem"
    both.write_text(leaf.key_pem() + leaf.chain_pem)
    path = tmp_path / "k.p12"
    command = ["openssl", "pkcs12", "-export", "-in", str(both), "-out", str(path), "-passout", f"pass:{SECRET}"]
    subprocess.run(command, check=True)
    identity = read_identity(Store(KEYSTORE, PKCS12, str(path), SECRET), SOURCE)
    assert identity.chain_pem.decode() == leaf.chain_pem


# JKS, and what else Java writes


def keytool(directory: Path, *arguments: str) -> None:
    command = ["keytool", "-J-XX:-UsePerfData", "-J-XX:TieredStopAtLevel=1", *arguments, "-noprompt"]
    subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def javas(kafka_kit: KafkaKit, tmp_path_factory: pytest.TempPathFactory, leaf: Certified, authority: Authority) -> Path:
    """A directory with stores of each type that keytool has written: k.jks and t.jks, k.p12 and t.p12; and key.jks, of
    which the key has a password of its own."""
    made = tmp_path_factory.mktemp("javas")
    (made / "source.p12").write_bytes(leaf.pkcs12(SECRET))
    (made / "ca.pem").write_text(authority.pem)
    for kind, ending in ((JKS, "jks"), (PKCS12, "p12")):
        source = ("-srckeystore", "source.p12", "-srcstoretype", PKCS12, "-srcstorepass", SECRET)
        target = ("-destkeystore", f"k.{ending}", "-deststoretype", kind, "-deststorepass", SECRET)
        keytool(made, "-importkeystore", *source, *target)
        own = ("-keystore", f"t.{ending}", "-storepass", SECRET)
        keytool(made, "-importcert", "-alias", "CA", "-file", "ca.pem", "-storetype", kind, *own)
    (made / "key.jks").write_bytes((made / "k.jks").read_bytes())
    own = ("-keystore", "key.jks", "-storepass", SECRET)
    keytool(made, "-keypasswd", "-alias", "kafka", *own, "-keypass", SECRET, "-new", "key-secret")
    keytool(made, "-importcert", "-alias", "own-ca", "-file", "ca.pem", "-keystore", "k.p12", "-storepass", SECRET)
    return made


@pytest.mark.parametrize(("name", "kind"), [("k.jks", JKS), ("k.jks", PKCS12), ("k.p12", PKCS12), ("k.p12", JKS)])
def test_keystores_of_keytool_are_read(javas: Path, leaf: Certified, name: str, kind: str) -> None:
    identity = read_identity(Store(KEYSTORE, kind, str(javas / name), SECRET), SOURCE)
    assert identity.chain_pem.decode().startswith(leaf.chain_pem)
    assert identity.key_pem.decode() == leaf.key_pem()


@pytest.mark.parametrize("password", [SECRET, None])
def test_truststores_of_keytool_are_read(javas: Path, authority: Authority, password: str | None) -> None:
    assert read_authorities(Store(TRUSTSTORE, PKCS12, str(javas / "t.p12"), SECRET), SOURCE) == authority.pem
    assert read_authorities(Store(TRUSTSTORE, JKS, str(javas / "t.jks"), password), SOURCE) == authority.pem


def test_a_pkcs12_truststore_in_which_java_finds_nobody_is_told(
    javas: Path, tmp_path: Path, leaf: Certified, authority: Authority
) -> None:
    """One that ``openssl pkcs12 -export -nokeys`` makes has no attribute of Java's, and neither has one of others."""
    encryption = BestAvailableEncryption(SECRET.encode())
    certificates = [authority.certificate, leaf.certificate]
    nameless = pkcs12.serialize_key_and_certificates(None, None, None, certificates, encryption)
    store = keystore(tmp_path / "t.p12", nameless, PKCS12, password=SECRET)
    assert read_authorities(store, SOURCE).startswith(authority.pem)
    assert why_empty_for_java(store, SOURCE) == (
        f"{SOURCE}: {KEYSTORE}={store.path}: Kafka finds no trusted certificate in this PKCS12 file, "
        "and so believes nobody"
    )
    assert why_empty_for_java(dataclasses.replace(store, kind=JKS), SOURCE), "Java tells by how the file begins"
    for name in ("t.p12", "k.p12", "t.jks"):
        assert why_empty_for_java(Store(TRUSTSTORE, PKCS12, str(javas / name), SECRET), SOURCE) is None
    made_here = keystore(tmp_path / "j.p12", authority.trusted_pkcs12(SECRET), PKCS12, password=SECRET)
    assert why_empty_for_java(made_here, SOURCE) is None
    assert why_empty_for_java(keystore(tmp_path / "t.pem", authority.pem), SOURCE) is None
    assert why_empty_for_java(dataclasses.replace(store, password="wrong-one"), SOURCE) is None, (
        "that is told elsewhere"
    )
    assert why_empty_for_java(dataclasses.replace(store, path=str(tmp_path / "gone")), SOURCE) is None


def test_a_keystore_of_keytool_with_a_trusted_entry_trusts_that_too(
    javas: Path, leaf: Certified, authority: Authority
) -> None:
    authorities = read_authorities(Store(TRUSTSTORE, PKCS12, str(javas / "k.p12"), SECRET), SOURCE)
    assert authorities == leaf.pem + authority.pem


def test_a_password_of_the_key_alone_is_used_and_told(javas: Path, leaf: Certified) -> None:
    path = str(javas / "key.jks")
    identity = read_identity(Store(KEYSTORE, JKS, path, SECRET, key_password="key-secret"), SOURCE)
    assert identity.key_pem.decode() == leaf.key_pem()
    wrong = problem_of_identity(Store(KEYSTORE, JKS, path, SECRET, key_password="wrong-one"))
    assert wrong == "wrong password (ssl.key.password)"
    missing = problem_of_identity(Store(KEYSTORE, JKS, path, SECRET))
    assert missing == "key encrypted and ssl.key.password missing"


def test_a_password_of_jks_that_is_wrong_or_missing_is_named_with_its_key(javas: Path) -> None:
    path = str(javas / "k.jks")
    assert problem_of_identity(Store(KEYSTORE, JKS, path, "wrong-one")) == "wrong password (ssl.keystore.password)"
    assert problem_of_identity(Store(KEYSTORE, JKS, path)) == "password missing (ssl.keystore.password)"


def test_a_damaged_jks_file_is_told_in_keytools_words(kafka_kit: KafkaKit, tmp_path: Path) -> None:
    store = keystore(tmp_path / "k.jks", b"\xfe\xed\xfe\xed" + b"\xff" * 99, JKS, password=SECRET)
    assert problem_of_identity(store).startswith("not readable: keytool says ")


# keytool itself, by programs in its place


def as_keytool(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = directory / "bin" / "keytool"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(directory))


def test_without_keytool_the_command_for_another_host_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    path = tmp_path / "my store.jks"
    line = problem_of_identity(keystore(path, b"\xfe\xed\xfe\xed", JKS, password=SECRET))
    assert f"keytool -importkeystore -srckeystore '{path}' -destkeystore '{tmp_path}/my store.p12'" in line
    assert "-deststoretype PKCS12" in line


def test_a_keytool_that_does_not_end_is_ended_with_its_children(
    world: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kjbod.security.stores.KEYTOOL_DEADLINE_S", 0.5)
    as_keytool(tmp_path, f"exec 9>{tmp_path}/open; pwd >{tmp_path}/where; sleep 100 & sleep 100", monkeypatch)
    os.mkfifo(tmp_path / "open")
    descriptor = os.open(tmp_path / "open", os.O_RDONLY | os.O_NONBLOCK)
    line = problem_of_identity(keystore(tmp_path / "k.jks", b"\xfe\xed\xfe\xed", JKS, password=SECRET))
    assert line == f"{tmp_path}/bin/keytool was not done within 0.5 s"
    os.set_blocking(descriptor, True)
    assert os.read(descriptor, 1) == b""  # nobody has it open: all have ended
    os.close(descriptor)
    assert not os.path.exists((tmp_path / "where").read_text().strip())


def test_keytools_arguments_have_no_secret_and_its_directory_is_ours_alone_and_goes(
    world: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_keytool(tmp_path, f'echo "$@" >{tmp_path}/said; stat -c "%a %n" "$PWD" >{tmp_path}/where', monkeypatch)
    store = keystore(tmp_path / "k.jks", b"\xfe\xed\xfe\xed", JKS, password=SECRET, key_password="key-secret")
    assert problem_of_identity(store) == "not readable: keytool says nothing"
    assert "secret" not in (tmp_path / "said").read_text()
    mode, _, directory = (tmp_path / "where").read_text().strip().partition(" ")
    assert mode == "700"
    assert not os.path.exists(directory)


def test_only_what_a_restart_cannot_mend_keeps_a_unit_down(tmp_path: Path) -> None:
    """systemd starts nothing again that ended with 78: a disk that is not mounted yet is not such a fault."""
    with pytest.raises(StoreError) as caught:
        read_identity(Store(KEYSTORE, PEM, str(tmp_path / "not-mounted-yet.pem")), "s")
    assert caught.value.exit_code == EXIT_FAILURE
    (tmp_path / "broken.pem").write_text("no store")
    with pytest.raises(StoreError) as caught:
        read_identity(Store(KEYSTORE, PEM, str(tmp_path / "broken.pem")), "s")
    assert caught.value.exit_code == EXIT_CONFIG
