"""Short names of Kerberos principals. Outcomes are those of KerberosShortNamer of Kafka 4.3.1, which the deep test asks
for names and rules made by chance."""

import itertools
import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kjbod.security.kerberos_names import parse_rules, short_name
from scripts.rig.kafka import KafkaKit
from tests.depth import at

REALM = "EXAMPLE.COM"


@pytest.mark.parametrize(
    ("rules", "principal", "name"),
    [
        ("DEFAULT", "alice@EXAMPLE.COM", "alice"),
        ("DEFAULT", "kafka/c1@EXAMPLE.COM", "kafka"),
        ("DEFAULT", "alice", "alice"),
        ("RULE:[1:$1@$0](.*@OTHER)s/@.*//,DEFAULT", "bob@OTHER", "bob"),
        ("RULE:[1:$1@$0](.*@OTHER)s/@.*//,DEFAULT", "bob@EXAMPLE.COM", "bob"),
        ("RULE:[2:$1](kafka|rm)s/^.*$/service/", "kafka/c1@OTHER", "service"),
        ("RULE:[2:$1-$2]", "kafka/c1@OTHER", "kafka-c1"),
        ("RULE:[2:$2.$1$1]/L", "Kafka/C1@OTHER", "c1.kafkakafka"),
        ("RULE:[1:$1]/U", "alice@OTHER", "ALICE"),
        ("RULE:[1:$1]s/a/b/", "aaa@OTHER", "baa"),
        ("RULE:[1:$1]s/a/b/g", "aaa@OTHER", "bbb"),
        ("RULE:[1:$1]s/a/b/g/L", "Xaa@OTHER", "xbb"),
        ("RULE:[1:$1]s/a/b/gU", "xaa@OTHER", "XBB"),
        ("RULE:[1:$1]s/(.)(.)/$2$1/g", "abcd@OTHER", "badc"),
        ("RULE:[1:$1]s/x*/-/g", "ab@OTHER", "-a-b-"),
        ("RULE:[1:nobody]", "a@OTHER", "nobody"),
        ("RULE:[3:$1],RULE:[1:$1](b.*),RULE:[1:-$1]", "alice@OTHER", "-alice"),
        (" RULE:[1:$1](b.*) ,\n DEFAULT ".strip(), "alice@EXAMPLE.COM", "alice"),
    ],
)
def test_a_name_is_made_as_kafka_makes_it(rules: str, principal: str, name: str) -> None:
    assert short_name(principal, parse_rules(rules), REALM) == name


@pytest.mark.parametrize(
    ("rules", "principal", "problem"),
    [
        ("DEFAULT", "alice@OTHER", "no rule of sasl.kerberos.principal.to.local.rules applies to 'alice@OTHER'"),
        ("", "alice@EXAMPLE.COM", "no rule of"),
        ("RULE:[0:]", "alice@EXAMPLE.COM", "no rule of"),
        ("DEFAULT", "a/b/c@EXAMPLE.COM", "expected the name of a Kerberos principal"),
        ("DEFAULT", "a@b@EXAMPLE.COM", "expected the name of a Kerberos principal"),
        ("RULE:[2:$1/$2],DEFAULT", "kafka/c1@EXAMPLE.COM", "expected a name without / and @"),
        ("RULE:[1:$1@$0],DEFAULT", "alice@EXAMPLE.COM", "expected a name without / and @"),
    ],
)
def test_nobody_gets_in_whom_no_rule_names(rules: str, principal: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        short_name(principal, parse_rules(rules), REALM)


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("default", "expected DEFAULT or RULE:"),
        ("DEFAULT/L", "expected DEFAULT or RULE:"),
        ("DEFAULT,", "expected DEFAULT or RULE:"),
        ("RULE:[1:$1]s/a/b", "expected DEFAULT or RULE:"),
        ("RULE:[:$1]", "expected DEFAULT or RULE:"),
        ("RULE:[1:$1](a,b)", "expected DEFAULT or RULE:"),
        ("RULE:[1:$1]/l", "expected DEFAULT or RULE:"),
        ("RULE:[1:$2]", r"expected \$0 to \$1, not \$2, between \[ and \]"),
        ("RULE:[1:$]", r"expected a number after \$ between"),
        ("RULE:[1:$1](a++)", "expected an expression that Python reads as Java does"),
        ("RULE:[1:$1]s/a/$1/", r"expected the number of a group of the pattern, not \$1"),
    ],
)
def test_a_rule_that_cannot_be_used_is_named_when_the_file_is_read(rule: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_rules(rule)


@given(st.text(st.sampled_from("RULE:[12:$0@]()s/.*ag/LU,DEFAULT\\ \n")), st.text(st.sampled_from("ab/@R"), max_size=8))
def test_any_text_is_rules_or_a_value_error(text: str, principal: str) -> None:
    for rules in (text, f"RULE:[1:$1{text}](a.*)s/{text}/b/g"):
        try:
            short_name(principal, parse_rules(rules), REALM)
        except ValueError as error:
            assert str(error)


# ---------------------------------------------------------------- beside Kafka's own

_HEADS = ("RULE:[1:$1]", "RULE:[1:$1@$0]", "RULE:[2:$1]", "RULE:[2:$2.$1;$0]", "RULE:[0:$0]", "RULE:[3:x]", "RULE:[1:]")
_MATCHES = ("", "(.*)", "(a.*)", "([^@]*@OTHER)", "(.*b$)", "(kafka|alice)")
_CHANGES = ("", "s/@.*//", "s/a/b/", "s/a/b/g", "s/(.)(.)/$2$1/g", "s/x*/-/g", "s/[;.].*/\\$/", "s/^/A/")
_FOLDS = ("", "/L", "/U", "L", "/", "/l")
_PRINCIPALS = ("alice@OTHER", "Alice@EXAMPLE.COM", "kafka/c1@EXAMPLE.COM", "kafka/C1b@OTHER", "a/b/c@OTHER", "b", "a/b",
               "@OTHER", "/@OTHER", "ab@", "xaab@OTHER", "a\\/b@EXAMPLE.COM")  # fmt: skip


def _ours(rules: str, principal: str) -> str | None:
    try:
        return short_name(principal, parse_rules(rules), REALM)
    except ValueError:
        return None


def _theirs(jvm: Any, rules: str, principal: str) -> str | None:
    """The short name by Kafka's classes; None: an exception, which refuses the file or the client."""
    from py4j.protocol import Py4JJavaError

    kerberos = jvm.org.apache.kafka.common.security.kerberos
    try:
        listed = jvm.java.util.ArrayList()
        for rule in re.split(r"\s*,\s*", rules) if rules else ():
            listed.add(rule)
        namer = kerberos.KerberosShortNamer.fromUnparsedRules(REALM, listed)
        return str(namer.shortName(kerberos.KerberosName.parse(principal)))
    except Py4JJavaError:
        return None


def test_names_and_rules_are_those_of_kafkas_own_class(kafka_kit: KafkaKit) -> None:
    rules = [*map("".join, itertools.product(_HEADS, _MATCHES, _CHANGES, _FOLDS)), "DEFAULT", "default", ""]
    chance = random.Random(4)
    lists = [*rules, *(",".join(chance.sample(rules, 3)) for _ in range(len(rules)))]
    lists = chance.sample(lists, at(quick=30, ci=30, deep=len(lists)))
    asked = [(each, principal) for each in lists for principal in _PRINCIPALS]
    theirs = kafka_kit.ask(lambda jvm: [_theirs(jvm, *each) for each in asked])
    found = {each: (_ours(*each), name) for each, name in zip(asked, theirs, strict=True)}
    assert {each: names for each, names in found.items() if names[0] != names[1]} == {}
    assert sum(name is not None for name in theirs) > len(lists)
