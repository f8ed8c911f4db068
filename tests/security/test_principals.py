"""Principals by certificates. Outcomes are those of SslPrincipalMapper of Kafka 4.3.1 and of X500Principal of Java 25;
Java 17 differs for BMPString, and for T61String beyond ASCII. Names and rules made by chance have been compared, too.
"""

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from kjbod.security.principals import parse_rules, principal_name, rfc2253
from scripts.rig.certificates import Authority


def rules_problem(text: str) -> str:
    with pytest.raises(ValueError) as caught:
        parse_rules(text)
    return str(caught.value)


# Rules


@pytest.mark.parametrize(
    ("rules", "dn", "name"),
    [
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", "CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("RULE:CN=(.*?)/$1/", "CN=Duke", "Duke"),
        ("RULE:.*/x/", "CN=a", "xx"),
        ("RULE:.*?/-/", "ab", "-a-b-"),
        ("RULE:(a|b)*/$1-/", "ab", "b--"),
        ("RULE:^CN=(.*)$/$1@$4/", "CN=a", "a@$4"),
        ("RULE:^CN=(.*)$/$12/", "CN=a", "a2"),
        ("RULE:^CN=(.*)$/\\$1$0/", "CN=a", "$1CN=a"),
        ("RULE:^CN=(.*)$/$01/", "CN=a", "a"),
        ("RULE:^CN=(.*)$/\\/$1/", "CN=a", "/a"),
        ("RULE:^CN=(?<who>.*)$/${who}/U", "CN=straße", "STRASSE"),
        ("RULE:^CN=((\\\\, *|\\w)+)(,.*|$)/$1/,DEFAULT", "CN=Tkac\\, Adam,OU=ITZ", "Tkac\\, Adam"),
        ("RULE:(?i)^cn=([\\w-.]+).*$/$1/L", "CN=A-b.c,O=x", "a-b.c"),
        ("RULE:^CN=(\\w+)$/$1/,DEFAULT", "CN=é", "CN=é"),
        ("RULE:^CN=(.*)$/$1/,DEFAULT", "CN=a\u2028b", "CN=a\u2028b"),
        ("RULE:^CN=([^,]+)$/$1/,DEFAULT", "CN=a\n", "a\n"),
        ("RULE:a$/x/,DEFAULT", "a\n", "a\n"),
        ("RULE:^CN=(a)?.*$/<$1>/", "CN=b", "<>"),
        (",,RULE:a/b/,,,DEFAULT,,", "a", "b"),
        ("  RULE:a/b/U   ,DEFAULT  ", "a", "B"),
        ("RULE:b//,DEFAULT", "b", ""),
    ],
)
def test_a_name_is_made_as_kafka_makes_it(rules: str, dn: str, name: str) -> None:
    assert principal_name(dn, parse_rules(rules)) == name


@pytest.mark.parametrize(("rules", "dn"), [("", "CN=a"), ("RULE:^CN=([^,]+),.*$/$1/", "CN=a")])
def test_a_name_that_no_rule_applies_to_is_refused(rules: str, dn: str) -> None:
    with pytest.raises(ValueError, match=r"no rule of ssl.principal.mapping.rules applies to 'CN=a'"):
        principal_name(dn, parse_rules(rules))


@pytest.mark.parametrize(
    "rule",
    [
        "default",
        "DEFAUL",
        "DEFAULT/L",
        "RULE:CN=(.*?),OU=ServiceUsers.*/$1",
        "rule:^CN=(.*?),OU=ServiceUsers.*$/$1/",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L/U",
        "RULE:^CN=(.*?),OU=ServiceUsers.*$/LU",
    ],
)
def test_a_rule_that_kafka_refuses_is_told_in_words(rule: str) -> None:
    assert "expected DEFAULT or RULE:pattern/replacement/" in rules_problem(rule)


@pytest.mark.parametrize(
    ("pattern", "shown"),
    [
        ("a*+", "*+"),
        ("(?>a)", "(?>"),
        ("[a[b]]", "[a["),
        ("[a&&b]", "without && or --"),
        (r"\p{L}", r"\p{"),
        (r"\bCN", r"\bC"),
        (r"\Qa\E", r"\Qa"),
        ("(?<=a*)b", "look-behind requires fixed-width pattern"),
        ("a{,2}", "{,2"),
        ("^(?i)a", "(?i"),
        ("(a", "missing )"),
    ],
)
def test_an_expression_that_python_does_not_read_as_java_does_is_refused(pattern: str, shown: str) -> None:
    problem = rules_problem(f"RULE:{pattern}/x/")
    assert problem.startswith(f"RULE:{pattern}/x/: expected an expression that Python reads as Java does")
    assert shown in problem


@pytest.mark.parametrize("replacement", ["$1", "$", "$x", "${who}", "${", "$9999999999"])
def test_a_replacement_without_such_a_group_is_refused(replacement: str) -> None:
    assert f"RULE:a/{replacement}/: expected " in rules_problem(f"RULE:a/{replacement}/")


@given(st.text(st.sampled_from("RULE:/CN=()[]{}.*+?|\\$1,DEFAULT^&-~<>w ib\n")), st.text(max_size=8))
def test_any_text_is_rules_or_a_value_error(text: str, replacement: str) -> None:
    for rules in (text, f"RULE:{text}/x/", f"RULE:(a)/{replacement}/"):
        try:
            parse_rules(rules)
        except ValueError as error:
            assert "expected " in str(error)


# Distinguished names


def tlv(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    return bytes([tag, size] if size < 128 else [tag, 0x82, size >> 8, size & 0xFF]) + content


def certificate(*names: bytes) -> bytes:
    """What is in a certificate as far as its subject; each name: the attributes of a SET."""
    subject = tlv(0x30, *(tlv(0x31, name) for name in names))
    empty = tlv(0x30)
    version = tlv(0xA0, tlv(2, b"\2"))
    return tlv(0x30, tlv(0x30, version, tlv(2, b"\1"), empty, empty, empty, subject, empty), empty, tlv(3, b"\0"))


def attribute(oid: str, tag: int, value: bytes) -> bytes:
    return tlv(0x30, tlv(6, bytes.fromhex(oid)), tlv(tag, value))


CN, O, EMAIL = "550403", "55040a", "2a864886f70d010901"  # noqa: E741
UID, DC = "0992268993f22c640101", "0992268993f22c640119"


def test_the_name_of_a_clients_certificate_is_written_in_reverse() -> None:
    client = Authority.make().client("alice", "Users", "Berlin")
    assert rfc2253(client.certificate.public_bytes(Encoding.DER)) == "CN=alice,OU=Berlin,OU=Users"


@pytest.mark.parametrize(
    ("oid", "tag", "value", "dn"),
    [
        (CN, 12, b'a,b+c"d\\e<f>g;h=i#j', 'CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h\\=i\\#j'),
        (CN, 12, b"  a b \r", "CN=\\ \\ a b\\ \\\r"),
        (CN, 12, b"  ", "CN=\\ \\ "),
        (CN, 12, b"#a\0b\n/", "CN=\\#a\\00b\n/"),
        (CN, 12, "é😀\u2028".encode(), "CN=é😀\u2028"),
        (CN, 12, b"", "CN="),
        (CN, 19, b"alice", "CN=alice"),
        (CN, 20, b"\xe9", "CN=é"),
        (CN, 30, "né".encode("utf-16-be"), "CN=né"),
        (CN, 28, "a".encode("utf-32-be"), "CN=#1c0400000061"),
        (CN, 2, b"\5", "CN=#020105"),
        (UID, 12, b"alice", "UID=alice"),
        (DC, 22, b"org", "DC=org"),
        ("550406", 19, b"DE", "C=DE"),
        ("550407", 12, b"x", "L=x"),
        ("550408", 12, b"x", "ST=x"),
        ("550409", 12, b"x", "STREET=x"),
        ("55040b", 12, b"x", "OU=x"),
        (EMAIL, 22, b"a@b.c", "1.2.840.113549.1.9.1=#16056140622e63"),
        ("550405", 19, b"1", "2.5.4.5=#130131"),
        ("883703", 12, b"x", "2.999.3=#0c0178"),
    ],
)
def test_an_attribute_is_written_as_java_writes_it(oid: str, tag: int, value: bytes, dn: str) -> None:
    assert rfc2253(certificate(attribute(oid, tag, value))) == dn


def test_attributes_of_one_name_keep_their_order() -> None:
    both = attribute(CN, 12, b"a") + attribute(UID, 12, b"b")
    assert rfc2253(certificate(attribute(O, 12, b"x" * 200), both)) == f"CN=a+UID=b,O={'x' * 200}"
    assert rfc2253(certificate()) == ""


@pytest.mark.parametrize(("tag", "value"), [(12, b"\xe9"), (19, b"\xe9"), (22, b"\xe9"), (30, b"a")])
def test_a_text_that_is_none_is_refused_and_not_guessed(tag: int, value: bytes) -> None:
    with pytest.raises(ValueError, match="expected a certificate whose CN is the text that it says it is"):
        rfc2253(certificate(attribute(CN, tag, value)))


@given(st.binary(max_size=64), st.integers(0, 200))
def test_any_bytes_are_a_name_or_a_value_error(data: bytes, at: int) -> None:
    whole = certificate(attribute(CN, 12, b"alice"), attribute(EMAIL, 22, b"a@b"))
    for each in (data, certificate(data), certificate(tlv(0x30, data)), whole[:at] + data + whole[at + 1 :]):
        try:
            rfc2253(each)
        except ValueError as error:
            assert str(error).startswith("expected a certificate")
