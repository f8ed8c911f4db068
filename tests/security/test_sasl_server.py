"""The server's half of SASL mechanisms. What is refused has been compared with PlainSaslServer and ScramSaslServer of
Kafka 4.3.1.
"""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kjbod.scram import MECHANISMS, credential, keys_of
from kjbod.security.jaas import parse_login
from kjbod.security.keys import Login
from kjbod.security.sasl import client_mechanism
from kjbod.security.sasl_server import (
    Answer,
    Refused,
    ScramCredential,
    ServerMechanism,
    TokenCredential,
    plain,
    plain_users,
    scram,
)

USERS = {"alice": "alice-secret", "bob": "bob-secret", "empty": "", "büro": "geheim ✓"}
SALT = b"a salt of enough bytes"
SCRAMS = sorted(MECHANISMS)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
WRONG_PASSWORD = "Authentication failed: Invalid username or password"
OTHER_ID = "Authentication failed: Client requested an authorization id that is different from username"


def refused(server: ServerMechanism, message: bytes) -> str:
    with pytest.raises(Refused) as caught:
        server.answer(message)
    return str(caught.value)


def stored(mechanism: str, password: str, *, salt: bytes = SALT, iterations: int = 4096) -> ScramCredential:
    hashed = MECHANISMS[mechanism]
    key = hashlib.pbkdf2_hmac(hashed.hash, password.encode(), salt, iterations)
    record = credential("any", hashed, salt=salt, salted_password=key, iterations=iterations)
    return ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)


ALICE = {mechanism: stored(mechanism, "alice-secret") for mechanism in SCRAMS}


def server_of(mechanism: str, name: str = "alice") -> ServerMechanism:
    return scram(mechanism, lambda user: ALICE[mechanism] if user == name else None, "servernonce")


def exchange(server: ServerMechanism, login: Login) -> str | None:
    """Both ends until the client is content; the user that the server has."""
    client = client_mechanism(login, "clientnonce")
    message: bytes | None = client.first()
    answer = Answer(b"")
    while message is not None:
        answer = server.answer(message)
        message = client.answer(answer.reply)
    return answer.user


def scram_refusal(mechanism: str) -> str:
    return f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"


# PLAIN


@pytest.mark.parametrize("user", ["alice", "bob", "büro"])
def test_plain_lets_a_user_in_with_the_password(user: str) -> None:
    assert exchange(plain(USERS), Login("PLAIN", user, USERS[user])) == user


@pytest.mark.parametrize("authorization_id", ["", "alice"])
def test_plain_takes_an_authorization_id_that_is_the_name(authorization_id: str) -> None:
    assert plain(USERS).answer(f"{authorization_id}\0alice\0alice-secret".encode()) == Answer(b"", "alice")


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"\0alice\0wrong", WRONG_PASSWORD),
        (b"\0carol\0alice-secret", WRONG_PASSWORD),
        (b"\0carol\0\xff", WRONG_PASSWORD),
        (b"\0alice\0alice-secre", WRONG_PASSWORD),
        (b"\0empty\0x", WRONG_PASSWORD),
        (b"\0\xff\0alice-secret", WRONG_PASSWORD),
        (b"bob\0alice\0wrong", WRONG_PASSWORD),
        (b"bob\0alice\0alice-secret", OTHER_ID),
        (b"\0\0x", "Authentication failed: username not specified"),
        (b"\0empty\0", "Authentication failed: password not specified"),
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"alice\0alice-secret", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0alice\0alice-secret\0x\0y\0z", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
    ],
)
def test_plain_refuses_in_kafkas_words(message: bytes, problem: str) -> None:
    assert refused(plain(USERS), message) == problem


def test_plain_answers_once() -> None:
    server = plain(USERS)
    refused(server, b"\0alice\0wrong")
    refused(server, b"\0alice\0alice-secret")


@given(st.lists(st.binary(), max_size=5).map(b"\0".join))
def test_plain_refuses_any_bytes_that_are_not_a_users(message: bytes) -> None:
    refused(plain(USERS), message)


def test_a_password_that_nobody_can_send_lets_nobody_in() -> None:
    refused(plain({"alice": "\ud800"}), b"\0alice\0\xed\xa0\x80")


@given(TEXT.filter(lambda text: text and "\0" not in text), TEXT.filter(lambda text: text and "\0" not in text))
def test_plain_lets_any_user_in(user: str, password: str) -> None:
    assert exchange(plain({user: password}), Login("PLAIN", user, password)) == user
    with pytest.raises(Refused):
        exchange(plain({user: f"{password}x"}), Login("PLAIN", user, password))


def test_users_of_plain_are_options_of_the_login_module() -> None:
    text = 'x.PlainLoginModule required username=admin password=a user_admin=a user_b_c="d e" user_=f;'
    assert plain_users(parse_login(text)[0]) == {"admin": "a", "b_c": "d e", "": "f"}


# SCRAM


@pytest.mark.parametrize("mechanism", SCRAMS)
def test_scram_lets_a_user_in_with_the_password(mechanism: str) -> None:
    assert exchange(server_of(mechanism), Login(mechanism, "alice", "alice-secret")) == "alice"


@pytest.mark.parametrize("mechanism", SCRAMS)
def test_scram_refuses_a_wrong_password_and_an_unknown_name_in_the_same_words(mechanism: str) -> None:
    for user, password in [("alice", "wrong"), ("carol", "alice-secret")]:
        with pytest.raises(Refused) as caught:
            exchange(server_of(mechanism), Login(mechanism, user, password))
        assert str(caught.value) == scram_refusal(mechanism)


def test_scram_refuses_an_unknown_name_at_its_first_message_as_kafka_does() -> None:
    assert refused(server_of("SCRAM-SHA-256"), b"n,,n=carol,r=abc") == scram_refusal("SCRAM-SHA-256")


@pytest.mark.parametrize("name", ["a,b", "a=b", "=2C", ",=,="])
def test_scram_reads_commas_and_equals_signs_in_a_name(name: str) -> None:
    assert exchange(server_of("SCRAM-SHA-256", name), Login("SCRAM-SHA-256", name, "alice-secret")) == name


def test_scram_answers_the_exchange_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    known = stored("SCRAM-SHA-256", "pencil", salt=salt)
    server = scram("SCRAM-SHA-256", {"user": known}.get, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert server.answer(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == Answer(
        f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    )
    final = f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert server.answer(final.encode()) == Answer(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "user")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xff",
        b"n,,",
        b"n,,n=alice",
        b"n,,n=alice,r=",
        b"n,,n=,r=abc",
        b"n,,n=a=b,r=abc",
        b"n,a=bob,n=alice,r=abc",
        b"n,,m=x,n=alice,r=abc",
        b"y,,n=alice,r=abc",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,,n=alice,r=a\0c",
    ],
)
def test_scram_refuses_a_malformed_first_message(message: bytes) -> None:
    server = server_of("SCRAM-SHA-512")
    assert refused(server, message) == scram_refusal("SCRAM-SHA-512")
    refused(server, b"n,,n=alice,r=abc")


PROOF = base64.b64encode(bytes(64)).decode()


@pytest.mark.parametrize(
    "message",
    [
        "",
        "c=biws,r=abcservernonce",
        f"c=biws,r=abc,p={PROOF}",
        f"c=biws,r=servernonce,p={PROOF}",
        f"c=biws,r=abcservernonce,p={PROOF}",
        f"c=eSws,r=abcservernonce,p={PROOF}",
        "c=biws,r=abcservernonce,p=AAAA",
        "c=biws,r=abcservernonce,p=é",
        f"c=biws,r=abcservernonce,p={PROOF[:-1]}",
        "n,,n=alice,r=abc",
    ],
)
def test_scram_refuses_a_wrong_final_message_and_all_after_it(message: str) -> None:
    server = server_of("SCRAM-SHA-512")
    server.answer(b"n,,n=alice,r=abc")
    assert refused(server, message.encode()) == scram_refusal("SCRAM-SHA-512")
    refused(server, f"c=biws,r=abcservernonce,p={PROOF}".encode())


def test_scram_refuses_a_proof_of_another_exchange() -> None:
    client = client_mechanism(Login("SCRAM-SHA-256", "alice", "alice-secret"), "clientnonce")
    final = client.answer(server_of("SCRAM-SHA-256").answer(client.first()).reply)
    assert final is not None
    server = scram("SCRAM-SHA-256", {"alice": ALICE["SCRAM-SHA-256"]}.get, "anothernonce")
    server.answer(b"n,,n=alice,r=clientnonce")
    refused(server, final)


EXPIRES_MS = 5_000


def server_with_token(mechanism: str) -> ServerMechanism:
    """Alice's password is that of a token of bob, too, whose id is alice."""
    token = TokenCredential(ALICE[mechanism], "bob", EXPIRES_MS)
    return scram(mechanism, lambda _: ALICE[mechanism], "servernonce", {"alice": token}.get)


@pytest.mark.parametrize("mechanism", SCRAMS)
def test_scram_lets_the_owner_of_a_delegation_token_in_until_it_expires(mechanism: str) -> None:
    last = None
    client, server = (
        client_mechanism(Login(mechanism, "alice", "alice-secret", True), "cn"),
        server_with_token(mechanism),
    )
    message: bytes | None = client.first()
    while message is not None:
        last = server.answer(message)
        message = client.answer(last.reply)
    assert last is not None
    assert (last.user, last.token_expires_ms) == ("bob", EXPIRES_MS)


@pytest.mark.parametrize("extension", ["", ",tokenauth=false", ",tokenauth=true,tokenauth=no", ",token=true"])
def test_a_login_is_by_no_token_unless_the_client_says_so(extension: str) -> None:
    server = server_with_token("SCRAM-SHA-256")
    reply = server.answer(f"n,,n=alice,r=abc{extension}".encode()).reply.decode()
    assert proved(server, f"n=alice,r=abc{extension}", reply) == ("alice", None)


@pytest.mark.parametrize("extension", [",tokenauth=true", ",tokenauth=TRUE", ",a=b,tokenauth=no,tokenauth=True"])
def test_a_login_is_by_a_token_in_each_way_that_kafka_takes(extension: str) -> None:
    server = server_with_token("SCRAM-SHA-256")
    reply = server.answer(f"n,,n=alice,r=abc{extension}".encode()).reply.decode()
    assert proved(server, f"n=alice,r=abc{extension}", reply) == ("bob", EXPIRES_MS)


@pytest.mark.parametrize("message", [b"n,,n=carol,r=abc,tokenauth=true", b"n,a=bob,n=alice,r=abc,tokenauth=true"])
def test_an_unknown_token_and_the_owner_as_another_identity_are_refused_as_a_wrong_password_is(message: bytes) -> None:
    assert refused(server_with_token("SCRAM-SHA-256"), message) == scram_refusal("SCRAM-SHA-256")


def test_a_user_with_the_name_of_no_token_cannot_log_in_by_one() -> None:
    assert refused(server_of("SCRAM-SHA-256"), b"n,,n=alice,r=abc,tokenauth=true") == scram_refusal("SCRAM-SHA-256")


def proved(server: ServerMechanism, bare: str, reply: str) -> tuple[str | None, int | None]:
    """Whom the server takes alice's proof for, and until when."""
    unproved = f"c=biws,{reply.split(',')[0]}"
    salted = hashlib.pbkdf2_hmac("sha256", b"alice-secret", SALT, 4096)
    keys = keys_of(salted, MECHANISMS["SCRAM-SHA-256"])
    signature = hmac.digest(keys.stored, f"{bare},{reply},{unproved}".encode(), "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(keys.client, signature, strict=True))).decode()
    answer = server.answer(f"{unproved},p={proof}".encode())
    return answer.user, answer.token_expires_ms


def test_scram_refuses_a_credential_of_too_few_iterations_as_kafka_does() -> None:
    weak = stored("SCRAM-SHA-256", "alice-secret", iterations=4095)
    refused(scram("SCRAM-SHA-256", {"alice": weak}.get, "servernonce"), b"n,,n=alice,r=abc")


@pytest.mark.parametrize("header", ["n,a=alice,", "n,,"])
def test_scram_takes_another_identity_only_where_it_is_the_name(header: str) -> None:
    server = server_of("SCRAM-SHA-256")
    assert server.answer(f"{header}n=alice,r=abc".encode()).reply.startswith(b"r=abcservernonce,s=")


def test_scram_ignores_an_extension_that_it_does_not_know_as_kafka_does() -> None:
    assert server_of("SCRAM-SHA-256").answer(b"n,,n=alice,r=abc,ext=1,tokenauth=false").user is None


def test_scram_takes_a_salt_of_any_length() -> None:
    known = stored("SCRAM-SHA-256", "secret", salt=b"7q")
    assert exchange(scram("SCRAM-SHA-256", {"a": known}.get, "sn"), Login("SCRAM-SHA-256", "a", "secret")) == "a"


@pytest.mark.parametrize("message", [b"n,,n=" + b"=" * 524_000, b"n,,n=a,r=a" + b",a=" * 170_000, b"," * 524_288])
def test_scram_refuses_the_longest_message_at_once(message: bytes) -> None:
    refused(server_of("SCRAM-SHA-256"), message)


@given(
    st.binary() | st.text(st.sampled_from("nry=,a2CDcp\0é\u0301m")).map(str.encode),
    st.binary() | st.text(st.sampled_from("crp=,biwsA/+é")).map(str.encode),
)
def test_scram_refuses_any_bytes(first: bytes, final: bytes) -> None:
    refused(server_of("SCRAM-SHA-256"), first)
    for message in (final, b"c=biws,r=abcservernonce," + final, b"c=" + final + b",r=abcservernonce,p=AAAA"):
        server = server_of("SCRAM-SHA-256")
        server.answer(b"n,,n=alice,r=abc")
        refused(server, message)


@settings(deadline=None, max_examples=50)
@given(TEXT.filter(lambda name: name and "\0" not in name), TEXT)
def test_scram_takes_names_and_passwords_as_their_bytes(name: str, password: str) -> None:
    login = Login("SCRAM-SHA-256", name, password)
    known = stored("SCRAM-SHA-256", password)
    assert exchange(scram("SCRAM-SHA-256", {name: known}.get, "servernonce"), login) == name
    for users in ({name: stored("SCRAM-SHA-256", f"{password}x")}, {f"{name}x": known}):
        with pytest.raises(Refused):
            exchange(scram("SCRAM-SHA-256", users.get, "servernonce"), login)


@pytest.mark.parametrize("name", ["", "a\0b"])
def test_scram_refuses_a_name_that_cannot_be_one(name: str) -> None:
    with pytest.raises(Refused):
        exchange(server_of("SCRAM-SHA-256", name), Login("SCRAM-SHA-256", name, "alice-secret"))


def test_keys_of_a_credential_are_not_shown() -> None:
    known = ALICE["SCRAM-SHA-256"]
    shown = repr(known)
    assert repr(known.stored_key) not in shown
    assert repr(known.server_key) not in shown
