"""The messages of OAUTHBEARER, as RFC 7628 and Kafka have them, and peers that do not keep to them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kjbod.errors import RemoteProtocolError
from kjbod.security.oauthbearer.exchange import Client, First, Invalid, Server, Verified, parse_first
from kjbod.security.oauthbearer.keys import TOKEN_BYTES_MAX
from kjbod.security.sasl_server import Answer, Refused

FIRST = b"n,,\x01auth=Bearer a.b.c\x01\x01"


def verify(token: str) -> Verified:
    if token != "a.b.c":
        raise Invalid("it is wrong: secret-reason")
    return Verified("alice", 5_000)


def test_a_client_sends_its_token_and_what_else_it_has_to_say() -> None:
    client = Client("a.b.c", {"logicalCluster": "lkc-1", "identityPoolId": "p 2"})
    assert client.first() == b"n,,\x01auth=Bearer a.b.c\x01logicalCluster=lkc-1\x01identityPoolId=p 2\x01\x01"
    assert client.answer(b"") is None
    assert parse_first(client.first()).extensions == {"logicalCluster": "lkc-1", "identityPoolId": "p 2"}


def test_a_client_that_is_refused_says_that_it_has_heard_it() -> None:
    client = Client("a.b.c", {})
    client.first()
    assert client.answer(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(RemoteProtocolError, match="asks on"):
        client.answer(b'{"status":"invalid_token"}')


def test_a_good_token_lets_its_owner_in_for_as_long_as_it_holds() -> None:
    assert Server(verify).answer(FIRST) == Answer(b"", "alice", lifetime_ms=5_000)
    assert Server(verify).answer(b"n,a=alice,\x01auth=bEARER  a.b.c\x01x=y\x01\x01").user == "alice"


def test_a_wrong_token_is_refused_in_two_steps_and_the_reason_stays_here() -> None:
    server = Server(verify)
    assert server.answer(FIRST.replace(b"a.b.c", b"x")) == Answer(b'{"status":"invalid_token"}')
    with pytest.raises(Refused) as caught:
        server.answer(b"\x01")
    assert str(caught.value) == '{"status":"invalid_token"}' and caught.value.reason == "it is wrong: secret-reason"


def test_a_scope_that_is_lacking_is_said() -> None:
    def lacking(_: str) -> Verified:
        raise Invalid("no", "insufficient_scope", 'read "x"')

    assert Server(lacking).answer(FIRST).reply == b'{"status":"insufficient_scope", "scope":"read \\"x\\""}'


def test_nobody_tries_token_after_token_in_one_exchange() -> None:
    server = Server(verify)
    server.answer(FIRST.replace(b"a.b.c", b"x"))
    for _ in range(2):
        with pytest.raises(Refused):
            server.answer(FIRST)
    again = Server(verify)
    again.answer(FIRST)
    with pytest.raises(Refused):
        again.answer(FIRST)


def test_who_asks_to_be_somebody_else_is_refused() -> None:
    with pytest.raises(Refused, match="authorization id that is different"):
        Server(verify).answer(b"n,a=bob,\x01auth=Bearer a.b.c\x01\x01")


@pytest.mark.parametrize(
    "message",
    [
        b"", b"\x01", b"n,,", FIRST[:-1], FIRST + b"\x01", b"y,,\x01auth=Bearer a\x01\x01", b"n,,\x01\x01",
        b"n,,\x01auth=Basic a\x01\x01", b"n,,\x01auth=Bearer \x01\x01", b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,a=,\x01auth=Bearer a\x01\x01", b"n,a=x=y,\x01auth=Bearer a\x01\x01", b"n,,\x01x=\x01auth=Bearer a\x01\x01",
        b"n,,\x01x1=y\x01auth=Bearer a\x01\x01", b"n,,\x01auth=Bearer \xff\x01\x01",
        "n,,\x01auth=Bearer ä\x01\x01".encode(),
    ],
)  # fmt: skip
def test_what_is_no_first_message_is_refused_without_saying_why(message: bytes) -> None:
    with pytest.raises(Refused, match="invalid credentials with SASL mechanism OAUTHBEARER"):
        Server(verify).answer(message)


def test_a_token_has_a_size_at_most() -> None:
    def first(size: int) -> bytes:
        return FIRST.replace(b"a.b.c", b"a" * size)

    assert parse_first(first(TOKEN_BYTES_MAX)) == First("a" * TOKEN_BYTES_MAX)
    with pytest.raises(ValueError, match=f"a token of more than {TOKEN_BYTES_MAX} bytes"):
        parse_first(first(TOKEN_BYTES_MAX + 1))
    with pytest.raises(Refused) as caught:
        Server(verify).answer(first(1_000_000))
    assert f"more than {2 * TOKEN_BYTES_MAX} bytes" in caught.value.reason


@given(st.binary() | st.from_regex(rb"\An,(a=[^\x00]{1,9})?,\x01([a-z]{1,4}=[ -~]{1,9}\x01){0,4}\x01\Z"))
def test_whatever_a_stranger_says_is_answered_or_refused(message: bytes) -> None:
    server = Server(verify)
    for _ in range(2):
        try:
            server.answer(message)
        except Refused as error:
            assert "reason" not in str(error)
