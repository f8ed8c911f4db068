"""JAAS configuration. Cases of what is read have been compared with JaasConfig of Kafka 4.3.1 and ConfigFile of Java
17, and so have some 100 000 texts made by chance.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kjbod.security.jaas import TEXT_CHARS_MAX, LoginModule, parse_login, parse_sections

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
FILE = f"""
// Kafka
KafkaServer {{
    {PLAIN} required   /* the only
      one */
    username="admin"
    password="admin-secret"
    user_alice="alice;secret=1";
}};

"sasl_ssl.KafkaServer" {{
    {SCRAM} Required;
    {PLAIN} optional serviceName=kafka;
}};
"""
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"}


def quoted(text: str) -> str:
    return f'"{"".join(ESCAPES.get(character, character) for character in text)}"'


def options(text: str) -> dict[str, str]:
    (module,) = parse_login(f"{PLAIN} required {text};")
    return dict(module.options)


def login_problem(text: str) -> str:
    with pytest.raises(ValueError) as caught:
        parse_login(text)
    assert "hush" not in str(caught.value)
    return str(caught.value)


def sections_problem(text: str) -> str:
    with pytest.raises(ValueError) as caught:
        parse_sections(text)
    assert "hush" not in str(caught.value)
    return str(caught.value)


# sasl.jaas.config


def test_a_login_module_of_kafkas_documentation_is_read() -> None:
    text = f'{PLAIN} required \\\n  username="alice" \\\n  password="alice-secret";'.replace("\\\n", "")
    assert parse_login(text) == (LoginModule(PLAIN, "required", {"username": "alice", "password": "alice-secret"}),)


def test_several_login_modules_are_read_in_their_order() -> None:
    text = f"{PLAIN} SUFFICIENT a=x1;{SCRAM} \"requisite\" ; 'x.Y' Optional a=b;"
    assert parse_login(text) == (
        LoginModule(PLAIN, "sufficient", {"a": "x1"}),
        LoginModule(SCRAM, "requisite", {}),
        LoginModule("x.Y", "optional", {"a": "b"}),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a=b", {"a": "b"}),
        ("a = b", {"a": "b"}),
        ("a=b a=c", {"a": "c"}),
        ('a=""', {"a": ""}),
        ('a="b"c=d', {"a": "b", "c": "d"}),
        ('"a b"="c"', {"a b": "c"}),
        ("a='b \"c\"'", {"a": 'b "c"'}),
        ('a="it\'s"', {"a": "it's"}),
        ('a="b;c=d // e"', {"a": "b;c=d // e"}),
        (r'a="\"\\\n\t\r\x"', {"a": '"\\\n\t\rx'}),
        (r'a="\101\0\377\477\8"', {"a": "A\0ÿ'78"}),
        (r'a="\1011"', {"a": "A1"}),
        ('a="b\\\nc"', {"a": "b\nc"}),
        ('a="b\nc=d', {"a": "b", "c": "d"}),
        ("a=/etc/b\nb", {"a": "b"}),
        ("a=b/c d=e\nf=g", {"a": "b", "f": "g"}),
        ("a=/\nb=c\nd", {"a": "d"}),
        ("a/**/=/* b */c // d", {"a": "c"}),
        ("a_b-c.d$e=f1.5-g_h", {"a_b-c.d$e": "f1.5-g_h"}),
        ("é=ü😀\xa0", {"é": "ü😀\xa0"}),
        ('a="${b}"', {"a": "${b}"}),
        ("a\x00=\x1fb", {"a": "b"}),
    ],
)
def test_options_are_read_as_kafka_reads_them(text: str, expected: dict[str, str]) -> None:
    assert options(f"{text}\n") == expected


@given(st.dictionaries(TEXT, TEXT, max_size=3))
def test_any_quoted_options_are_read(values: dict[str, str]) -> None:
    assert options(" ".join(f"{quoted(key)}={quoted(value)}" for key, value in values.items())) == values


@given(st.text(st.sampled_from("ab1 =;\"'\\/*\n{}$-.é\x85")))
def test_any_text_is_login_modules_or_a_value_error(text: str) -> None:
    for parse in (parse_login, parse_sections):
        for each in (text, f"A required {text};", f"A {{ B required {text}; }};"):
            try:
                parse(each)
            except ValueError as error:
                assert "expected " in str(error)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", 'expected a login module: class required option="value";'),
        (" // hush", 'expected a login module: class required option="value";'),
        (PLAIN, "login module 1: expected required, requisite, sufficient or optional after the class"),
        (f"{PLAIN} hush;", "login module 1: expected required, requisite, sufficient or optional after the class"),
        ('"" required;', "login module 1: expected the class of a login module, not an empty text"),
        ("; required;", "login module 1: expected the class of a login module"),
        (f"{PLAIN} required", "login module 1: expected ; after its options"),
        (f'{PLAIN} required a="hush;', "login module 1: expected ; after its options"),
        (f'{PLAIN} required a="hush"', "login module 1: expected ; after its options"),
        (f"{PLAIN} required;;", "login module 2: expected the class of a login module"),
        (
            f"{PLAIN} required; x",
            "login module 2: expected required, requisite, sufficient or optional after the class",
        ),
    ],
)
def test_a_login_module_that_kafka_refuses_is_told_in_words(text: str, problem: str) -> None:
    assert login_problem(text) == problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("hush", "option 2: expected name="),
        ("password=", "option 2: expected name="),
        ("password==hush", "option 2: expected name="),
        ("password=;", "option 2: expected name="),
        ("password=1234", "option 2: expected name="),
        ("password=-hush", "option 2: expected name="),
        ("password=${hush}", "expected ; or name="),
        ("password=#hush", "option 2: expected name="),
        ("password=/hush", "option 2: expected name="),
        ("password=/hush\n;", "option 2: expected name="),
        ("password=hush hush", "option 3: expected name="),
        ("password=hush+hush", 'expected ; or name="value" after 2 options, the value in double quotes'),
        ('password="a"hush"', "option 3: expected name="),
        ("=hush", "expected ; or name="),
        ("a\\=hush", "option 2: expected name="),
    ],
)
def test_an_option_that_kafka_refuses_is_told_by_its_number_and_not_quoted(text: str, problem: str) -> None:
    assert login_problem(f"{PLAIN} required username=alice {text};").startswith(f"login module 1: {problem}")


def test_options_are_not_shown() -> None:
    assert "hush" not in repr(parse_login(f"{PLAIN} required password=hush;"))


def test_a_text_that_is_too_long_is_refused() -> None:
    end = f"{PLAIN} required;"
    assert parse_login(end.rjust(TEXT_CHARS_MAX))
    assert login_problem(end.rjust(TEXT_CHARS_MAX + 1)) == f"expected at most {TEXT_CHARS_MAX} characters"
    assert sections_problem(" " * (TEXT_CHARS_MAX + 1)) == f"expected at most {TEXT_CHARS_MAX} characters"


# A login configuration file


def test_a_login_configuration_file_is_read_by_sections() -> None:
    assert parse_sections(FILE) == {
        "KafkaServer": (
            LoginModule(
                PLAIN,
                "required",
                {"username": "admin", "password": "admin-secret", "user_alice": "alice;secret=1"},
            ),
        ),
        "sasl_ssl.KafkaServer": (
            LoginModule(SCRAM, "required", {}),
            LoginModule(PLAIN, "optional", {"serviceName": "kafka"}),
        ),
    }


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("/* none", []),
        ("A{};", ["A"]),
        ("A { } ; B { };", ["A", "B"]),
        ("'A B' { };", ["A B"]),
        ("* { };", ["*"]),
        ("a-b.c { };", ["a-b.c"]),
    ],
)
def test_names_of_sections_are_read_as_java_reads_them(text: str, names: list[str]) -> None:
    assert list(parse_sections(text)) == names


@given(st.dictionaries(TEXT, TEXT.filter(lambda text: "${" not in text), max_size=3))
def test_any_quoted_options_are_read_from_a_file(values: dict[str, str]) -> None:
    text = " ".join(f"{quoted(key)}={quoted(value)}" for key, value in values.items())
    assert parse_sections(f"A {{ {PLAIN} required {text}; }};") == {"A": (LoginModule(PLAIN, "required", values),)}


@pytest.mark.parametrize("value", ["${", "${a", "$", "$a}", "${{a}}", "a${{b}}c", "${{a}", "${{a}}${b", "${{a}}${{b}}"])
def test_a_value_without_a_system_property_is_read_as_it_is(value: str) -> None:
    sections = parse_sections(f"A {{ {PLAIN} required a={quoted(value)}; }};")
    assert sections["A"][0].options == {"a": value}


@pytest.mark.parametrize("value", ["${user.home}/keytab", "a${b}", "${}", "${/}", "${{a}}${b}", "${a}${{b}}"])
def test_a_value_with_a_system_property_is_refused(value: str) -> None:
    problem = "line 2: expected no ${...} in a value: kjbod knows no system properties of Java"
    assert sections_problem(f"A {{ {PLAIN} required\n a={quoted(value)}; }};") == problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# Kafka\nA { };", "line 1: expected the name of a section; a comment begins with //"),
        ("A\n;", "line 2: expected { after the name of a section"),
        ("A { }", "line 1: expected ; after the } of a section"),
        ("A { }\n\nB { };", "line 3: expected ; after the } of a section"),
        ("A { };\nA { };", "line 2: expected a different name for each section"),
        ("A {", "line 1: expected the class of a login module"),
        ("A {\n 'a.B' required; };", "line 2: expected the class of a login module"),
        ("A {\n a.B hush; };", "line 2: expected required, requisite, sufficient or optional after the class"),
        ("A { a.B required\n};", 'line 2: expected ; or name="value" after 0 options'),
        ("A {\n a.B required a='hush'; };", "line 2: option 1: expected name="),
        ("A {\n a.B required a=1; };", "line 2: option 1: expected name="),
        ("A {\n a.B required\n a=b", "line 3: expected ; after its options"),
    ],
)
def test_a_file_that_java_refuses_is_told_by_its_line(text: str, problem: str) -> None:
    assert sections_problem(text).startswith(problem)


def test_a_section_to_which_java_gives_no_name_is_refused() -> None:
    problem = "line 2: expected the name of a section; a comment begins with //"
    assert sections_problem("A { };\n5 { };") == problem
