"""Variables of config.providers. Cases marked as Kafka's have been compared with AbstractConfig of Kafka 4.3.1."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kjbod.config.properties import render_properties
from kjbod.config.providers import FILE_BYTES_MAX, Variables

PACKAGE = "org.apache.kafka.common.config.provider"
PROVIDERS = {
    "config.providers": "file,directory,env",
    "config.providers.file.class": f"{PACKAGE}.FileConfigProvider",
    "config.providers.directory.class": f"{PACKAGE}.DirectoryConfigProvider",
    "config.providers.env.class": f"{PACKAGE}.EnvVarConfigProvider",
}
ENVIRONMENT = {"USER": "alice", "PASS": "hush"}
FILE_PATHS = "config.providers.file.param.allowed.paths"
DIRECTORY_PATHS = "config.providers.directory.param.allowed.paths"
PATTERN = "config.providers.env.param.allowlist.pattern"


def resolve(text: str) -> str:
    return resolve_with(text, {})


def resolve_with(text: str, properties: dict[str, str]) -> str:
    return Variables(PROVIDERS | properties, ENVIRONMENT).resolve(text)


def problem(text: str, properties: dict[str, str] | None = None) -> str:
    with pytest.raises(ValueError) as caught:
        resolve_with(text, properties or {})
    assert "\n" not in str(caught.value)
    assert "hush" not in str(caught.value)
    return str(caught.value)


def secrets(directory: Path, text: str = "password=hush\nuser=alice\n") -> Path:
    file = directory / "secret.properties"
    file.write_text(text, encoding="utf-8")
    return file


# What is resolved, as by Kafka


@given(st.text().filter(lambda text: "${" not in text))
def test_a_text_without_variables_is_returned_as_it_is(text: str) -> None:
    assert Variables({}, {}).resolve(text) == text


@pytest.mark.parametrize(
    ("text", "resolved"),
    [
        ("${env:USER}", "alice"),
        ("${env::USER}", "alice"),
        ("${env:USER}${env:PASS}", "alicehush"),
        ("a ${env:USER} b ${env:USER}", "a alice b alice"),
        ("$${env:USER}}", "$alice}"),
        ("\\${env:USER}", "\\alice"),
        ("${a}${env:USER}", "${a}alice"),
        ("${env:USER", "${env:USER"),
        ("${env}", "${env}"),
        ("", ""),
    ],
)
def test_variables_are_found_as_kafka_finds_them(text: str, resolved: str) -> None:
    assert resolve(text) == resolved


def test_a_login_module_gets_its_user_and_password_from_a_file_and_the_environment(tmp_path: Path) -> None:
    text = f'Plain required username="${{env:USER}}" password="${{file:{secrets(tmp_path)}:password}}";'
    assert resolve(text) == 'Plain required username="alice" password="hush";'


def test_a_value_is_not_searched_for_variables(tmp_path: Path) -> None:
    file = secrets(tmp_path, "password=${env:USER}\n")
    assert resolve(f"${{file:{file}:password}}") == "${env:USER}"


def test_a_key_in_a_properties_file_may_have_a_colon(tmp_path: Path) -> None:
    file = secrets(tmp_path, "a\\:b=hush\n")
    assert resolve(f"${{file:{file}:a:b}}") == "hush"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("v=é", "é"),
        ("v=\\é", "é"),
        ("v=\\\\é", "\\é"),
        ("v=\\u00e9", "é"),
        ("v=😀", "😀"),
        ("v=a\\\n  b", "ab"),
        ("v=a ", "a "),
        ("v=", ""),
    ],
)
def test_a_properties_file_of_a_provider_is_utf_8(tmp_path: Path, line: str, value: str) -> None:
    assert resolve(f"${{file:{secrets(tmp_path, line)}:v}}") == value


@given(value=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_value_that_is_written_to_a_properties_file_is_had(
    tmp_path_factory: pytest.TempPathFactory, value: str
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.properties"
    file.write_bytes(render_properties({"v": value}))
    assert resolve(f"${{file:{file}:v}}") == value


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_directory_gives_the_whole_contents_of_its_files(tmp_path: Path, slash: str) -> None:
    (tmp_path / "password").write_bytes(b"h\xc3\xa9\r\n")
    assert resolve(f"${{directory:{tmp_path}{slash}:password}}") == "hé\r\n"


def test_a_directory_of_kubernetes_has_links_to_its_files(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "password").write_text("hush")
    (tmp_path / "password").symlink_to("..data/password")
    assert resolve(f"${{directory:{tmp_path}:password}}") == "hush"


def test_a_provider_is_known_by_its_class_and_not_by_its_name() -> None:
    properties = {"config.providers": "file", "config.providers.file.class": f"{PACKAGE}.EnvVarConfigProvider"}
    assert resolve_with("${file:USER}", properties) == "alice"


# When files are read


def test_nothing_is_read_before_a_variable_asks_for_it_and_then_once(tmp_path: Path) -> None:
    variables = Variables(PROVIDERS, {})
    with pytest.raises(ValueError, match="No such file or directory"):
        variables.resolve(f"${{file:{tmp_path}/secret.properties:user}}")
    file = secrets(tmp_path)
    (tmp_path / "token").write_text("one")
    assert variables.resolve(f"${{file:{file}:user}} ${{directory:{tmp_path}:token}}") == "alice one"
    secrets(tmp_path, "password=other")
    (tmp_path / "token").unlink()
    assert variables.resolve(f"${{file:{file}:password}} ${{directory:{tmp_path}:token}}") == "hush one"


def test_values_are_not_shown(tmp_path: Path) -> None:
    variables = Variables(PROVIDERS, ENVIRONMENT)
    variables.resolve(f"${{file:{secrets(tmp_path)}:password}}")
    assert "hush" not in repr(variables)


# What has no value: Kafka leaves most of these as text, or does not start


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"config.providers": ""}, "config.providers does not list env"),
        ({"config.providers": "file"}, "config.providers does not list env"),
        (
            {"config.providers": "file, env"},
            "config.providers does not list env; Kafka takes no spaces between its names",
        ),
        (
            {"config.providers.env.class": "com.example.Vault"},
            "config.providers.env.class=com.example.Vault: expected FileConfigProvider, DirectoryConfigProvider or"
            f" EnvVarConfigProvider of {PACKAGE}",
        ),
        (
            {"config.providers.env.class": f"{PACKAGE}.EnvVarConfigProvider "},
            f"config.providers.env.class={PACKAGE}.EnvVarConfigProvider : expected FileConfigProvider,"
            f" DirectoryConfigProvider or EnvVarConfigProvider of {PACKAGE}",
        ),
    ],
)
def test_a_provider_that_is_not_there_is_named(properties: dict[str, str], reason: str) -> None:
    assert problem("${env:PASS}", properties) == f"${{env:...}}: {reason}"


def test_a_provider_without_a_class_is_named() -> None:
    assert problem("${vault:a:b}", {"config.providers": "vault"}).startswith(
        "${vault:...}: config.providers.vault.class is missing: expected FileConfigProvider,"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${env:NONE}", "${env:NONE}: the environment has no such variable"),
        ("${env:path:USER}", "${env:path:USER}: expected no path: ${env:key}"),
        ("${file:password}", "${file:password}: expected a path: ${file:path:key}"),
        ("${directory:password}", "${directory:password}: expected a path: ${directory:path:key}"),
        ("${file:/none:a}", "${file:/none:a}: cannot read the file: No such file or directory"),
        ("${file:/proc:a}", "${file:/proc:a}: cannot read the file: Is a directory"),
        ("${file:/dev/null:a}", "${file:/dev/null:a}: cannot read the file: Not a regular file"),
        ("${directory:/dev/null:a}", "${directory:/dev/null:a}: cannot read the file: Not a directory"),
        ("${directory:/:proc}", "${directory:/:proc}: cannot read the file: Is a directory"),
        ("${file:\0:a}", "${file:...:a}: cannot read the file: no file can have this name"),
    ],
)
def test_a_variable_without_a_value_is_named_with_the_reason(text: str, message: str) -> None:
    assert problem(f"x {text} y") == message


@pytest.mark.parametrize("key", ["../secret.properties", ".", "..", "", "a/b"])
def test_a_key_of_a_directory_leads_nowhere_else(tmp_path: Path, key: str) -> None:
    (tmp_path / "d").mkdir()
    secrets(tmp_path)
    assert "expected the name of a file in the directory as the key" in problem(f"${{directory:{tmp_path}/d:{key}}}")


def test_a_key_that_a_file_does_not_have_is_named_with_the_file(tmp_path: Path) -> None:
    file = secrets(tmp_path)
    assert problem(f"${{file:{file}:pass}}") == f"${{file:{file}:pass}}: the file has no such key"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"password=\\uhush", "expected four hexadecimal digits after \\u"),
        (b"password=hush\xff", "expected UTF-8"),
        (b"#" * (FILE_BYTES_MAX + 1), f"{FILE_BYTES_MAX + 1} bytes are too many"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_not_quoted(tmp_path: Path, data: bytes, reason: str) -> None:
    file = tmp_path / "secret.properties"
    file.write_bytes(data)
    assert problem(f"${{file:{file}:password}}") == f"${{file:{file}:password}}: cannot read the file: {reason}"


def test_a_file_of_a_directory_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "password").write_bytes(b"hush\xff")
    assert problem(f"${{directory:{tmp_path}:password}}").endswith("cannot read the file: expected UTF-8")


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "password")
    assert problem(f"${{directory:{tmp_path}:password}}").endswith("Not a regular file")


@pytest.mark.parametrize(
    "text",
    [
        'username="${env:USER" password="hush-${env:PASS}"',
        'username="${env:USER" password="hush" url="http://x}"',
        "${file:/a password=hush:b}",
        "${env:\nhush}",
        "${env password='hush':USER}",
    ],
)
def test_a_brace_that_was_forgotten_shows_no_secret(text: str) -> None:
    assert "..." in problem(text)


def test_a_password_that_looks_like_a_variable_is_not_shown() -> None:
    assert problem("${ab:hush}") == "${ab:...}: config.providers does not list ab"


# What providers may read


@pytest.mark.parametrize(
    "allowed", ["{}", "{}/", "{}/d,{}", "{},,", "{}/d/..", "/../{}", "//{}", "{}/secret.properties", ""]
)
def test_a_path_below_an_allowed_one_is_read(tmp_path: Path, allowed: str) -> None:
    (tmp_path / "d").mkdir()
    properties = {FILE_PATHS: allowed.replace("{}", str(tmp_path))}
    for path in (secrets(tmp_path), f"/{tmp_path}/d/.././secret.properties"):
        assert resolve_with(f"${{file:{path}:password}}", properties) == "hush"


def test_a_path_beside_the_allowed_ones_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    properties = {FILE_PATHS: f"{tmp_path}/d", DIRECTORY_PATHS: f"{tmp_path}/d"}
    file = secrets(tmp_path)
    for path in (str(file), f"{tmp_path}/d/../secret.properties", f"{tmp_path}/d2", "secret.properties"):
        message = problem(f"${{file:{path}:password}}", properties)
        assert message == f"${{file:{path}:password}}: {FILE_PATHS} does not allow this path"
    assert f"{DIRECTORY_PATHS} does not allow this path" in problem(
        f"${{directory:{tmp_path}:secret.properties}}", properties
    )
    assert "does not allow" in problem(f"${{file:{file}:password}}", {FILE_PATHS: ","})


@pytest.mark.parametrize("wrong", ["tmp", " /tmp", "/none", ",/"])
def test_an_allowed_path_that_kafka_does_not_start_with_is_an_error(tmp_path: Path, wrong: str) -> None:
    message = problem(f"${{file:{secrets(tmp_path)}:password}}", {FILE_PATHS: f"{wrong},{tmp_path}"})
    assert f"{FILE_PATHS}: expected absolute paths that exist, not " in message


@pytest.mark.parametrize("pattern", ["US.*", "PASS|USER", "[A-Z]+", "(?i)user", ".*"])
def test_an_environment_variable_that_the_pattern_matches_is_had(pattern: str) -> None:
    assert resolve_with("${env:USER}", {PATTERN: pattern}) == "alice"


@pytest.mark.parametrize("pattern", ["SE", "user", "", "USER.+"])
def test_an_environment_variable_that_the_pattern_does_not_match_as_a_whole_is_not_had(pattern: str) -> None:
    assert problem("${env:USER}", {PATTERN: pattern}) == f"${{env:USER}}: {PATTERN} does not allow this variable"


@pytest.mark.parametrize("pattern", ["(", "\\p{Upper}+", "[A-Z&&[^X]]+"])
def test_a_pattern_that_python_does_not_read_as_java_does_is_refused(pattern: str) -> None:
    assert problem("${env:USER}", {PATTERN: pattern}) == (
        f"${{env:USER}}: {PATTERN}: expected a regular expression that Java and Python both know"
    )
