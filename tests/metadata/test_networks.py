"""Networks as hosts of ACLs, as Kafka 4.4.0 reads them (its ``CidrUtils`` gave the expected answers)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kjbod.ids import Uuid
from kjbod.metadata.acls import Acls, Operation, ResourceType, Rules
from kjbod.metadata.networks import is_in_network, parse_network
from kjbod.metadata.records import AccessControlEntryRecord

HOSTS = (
    *("10.1.2.3", "0.0.0.0", "10.0.0.0", "255.255.255.255", "10.0.0.255", "::1", "0:0:0:0:0:0:0:1"),
    *("fe80:0:0:0:0:0:0:5", "fe80:0:0:0:0:0:0:5%eth0", "fe80:0:0:0:0:0:0:5%2", "2001:db8:0:0:0:0:0:7", "010.1.2.3"),
    *("localhost", "", "0:0:0:0:0:ffff:a01:203", "::ffff:10.1.2.3"),
)
TEN = {"10.1.2.3", "10.0.0.0", "10.0.0.255", "010.1.2.3"}
ONE = {"::1", "0:0:0:0:0:0:0:1"}
LINK = {"fe80:0:0:0:0:0:0:5", "fe80:0:0:0:0:0:0:5%eth0", "fe80:0:0:0:0:0:0:5%2"}
DOC = {"2001:db8:0:0:0:0:0:7"}
NETWORKS = {
    "10.0.0.0/8": TEN,
    "10.5.6.7/8": TEN,
    "10.0.0.0/0": TEN | {"255.255.255.255"},
    "0.0.0.0/0": TEN | {"255.255.255.255"},
    "10.1.2.3/32": {"10.1.2.3", "010.1.2.3"},
    "10.1.2.2/31": {"10.1.2.3", "010.1.2.3"},
    "010.0.0.0/8": TEN,
    "10.0.0.0/08": TEN,
    "::/0": ONE | LINK | DOC,
    "::1/128": ONE,
    "fe80::/10": LINK,
    "2001:db8::/32": DOC,
    "2001:db8::5/120": DOC,
    "fe80::5%eth0/64": LINK,
    "0:0:0:0:0:0:0:0/000": ONE | LINK | DOC,
    "::/+8": ONE,
    "[::1]/128": ONE,
}
NO_NETWORKS = (
    *("10.0.0.0/33", "10.0.0.0/255.0.0.0", "10.0.0/8", "10.0.0.0/", "10.0.0.0/-1", " 10.0.0.0/8", "10.0.0.0/8 "),
    *("10.0.0.256/8", "::ffff:10.0.0.0/104", "::ffff:0:0/96", "::/129", "::/", "1::2::3/16", "::/ 8", "10.0.0.0/8/8"),
    *("::1/128/1", "localhost:/8", "", "/", "*", "10.0.0.1", "::1", "::/" + "9" * 5_000, "١٠.0.0.0/8"),
)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_has_the_hosts_that_it_has_for_kafka(network: str) -> None:
    assert parse_network(network) is not None
    assert {host for host in HOSTS if is_in_network(host, network)} == NETWORKS[network]


@pytest.mark.parametrize("text", NO_NETWORKS, ids=lambda text: repr(text[:24]))
def test_a_text_that_is_no_network_has_no_host(text: str) -> None:
    assert parse_network(text) is None
    assert not any(is_in_network(host, text) for host in HOSTS)


@given(st.text(), st.text())
def test_no_text_is_an_error(host: str, network: str) -> None:
    assert is_in_network(host, network) in (False, True)
    assert is_in_network(host, f"{network}/8") in (False, True)


DENY, ALLOW = 2, 3


def entry(number: int, host: str, permission: int) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=Uuid.of(1, number),
        resource_type=ResourceType.TOPIC,
        resource_name="t",
        pattern_type=3,
        principal="User:a",
        host=host,
        operation=Operation.READ,
        permission_type=permission,
    )


@pytest.mark.parametrize(
    ("entries", "host", "allowed"),
    [
        ([("*", ALLOW), ("10.0.0.0/8", DENY)], "10.1.2.3", False),
        ([("*", ALLOW), ("10.0.0.0/8", DENY)], "11.1.2.3", True),
        ([("10.0.0.0/8", ALLOW)], "10.1.2.3", True),
        ([("10.0.0.0/8", ALLOW)], "11.1.2.3", False),
        ([("10.0.0.0/8", ALLOW), ("10.1.2.3", DENY)], "10.1.2.3", False),
        ([("fe80::/10", ALLOW), ("fe80::/64", DENY)], "fe80::1:2:3:4:5", True),
        ([("fe80::/10", ALLOW), ("fe80::/64", DENY)], "fe80::5", False),
        ([("10.0.0.0/33", ALLOW)], "10.1.2.3", False),
    ],
)
def test_an_acl_is_for_the_hosts_of_its_network(entries: list[tuple[str, int]], host: str, allowed: bool) -> None:
    records = [entry(number, *one) for number, one in enumerate(entries)]
    rules = Rules(class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer")
    assert Acls(rules, records, principal="User:a", host=host).allow(Operation.READ, ResourceType.TOPIC, "t") is allowed
