"""server.properties: what is read, and that every mistake is told at once."""

import asyncio
import socket
from pathlib import Path

import pytest

from kjbod.config import (
    Config,
    HostPort,
    Listener,
    Voter,
    load_config,
    parse_config,
    require_controller,
)
from kjbod.config.hosts import connections_by_address
from kjbod.config.keys import settings
from kjbod.config.load import (
    FILE_BYTES_MAX,
    Check,
    agent_problems,
    broker_problems,
    controller_problems,
    guard_problems,
    load_guard_config,
    server_problems,
)
from kjbod.errors import EXIT_CONFIG, ConfigError
from kjbod.runtime.names import Names, UnresolvedError

BROKER = """\
process.roles=broker
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:9093
listeners=PLAINTEXT://127.0.0.1:9092
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs=/mnt/d1,/mnt/d2,/mnt/d3
"""
CONTROLLER = """\
process.roles=controller
node.id=3000
controller.quorum.bootstrap.servers=127.0.0.1:9093
listeners=CONTROLLER://127.0.0.1:9093
controller.listener.names=CONTROLLER
log.dirs=/mnt/meta
"""


def parse(base: str, *changes: str) -> Config:
    """``key=value`` changes or adds a line of ``base``, ``-key`` takes it out."""
    lines = dict(line.split("=", 1) for line in base.splitlines())
    for change in changes:
        if change.startswith("-"):
            del lines[change[1:]]
        else:
            key, value = change.split("=", 1)
            lines[key] = value
    text = "".join(f"{key}={value}\n" for key, value in lines.items())
    return parse_config(text.encode(), source="server.properties", working_directory="/home/a", host="host1")


def problems(base: str, *changes: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse(base, *changes)
    assert caught.value.exit_code == EXIT_CONFIG
    assert str(caught.value).splitlines() == list(caught.value.problems)
    return caught.value.problems


# What is read


def test_the_file_of_a_real_jbod_broker_loads_as_it_is() -> None:
    config = parse(BROKER, "offsets.topic.replication.factor=1", "log.dir.failure.timeout.ms=8000")
    assert agent_problems(config) == broker_problems(config) == []
    assert config.node_id == 1
    assert config.process_roles == {"broker"}
    assert config.log_dirs == ("/mnt/d1", "/mnt/d2", "/mnt/d3")
    assert config.metadata_log_dir == "/mnt/d1"
    assert config.listeners == (Listener("PLAINTEXT", "127.0.0.1", 9092, "PLAINTEXT"),)
    assert config.advertised_listeners == config.listeners
    assert config.controller_quorum_bootstrap_servers == (HostPort("127.0.0.1", 9093),)
    assert config.log_dir_failure_timeout_ms == 8000


def test_the_file_of_a_real_controller_loads_as_it_is() -> None:
    config = parse(CONTROLLER)
    require_controller(config)
    assert config.controller_listener_names == ("CONTROLLER",)
    # No map was given and nothing secure is in use: controllers' listeners are PLAINTEXT.
    assert config.controller_protocol == "PLAINTEXT"
    assert config.advertised_controller_listeners == (Listener("CONTROLLER", "127.0.0.1", 9093, "PLAINTEXT"),)
    assert config.advertised_broker_listeners == ()


@pytest.mark.parametrize("key", ["create.topic.policy.class.name", "alter.config.policy.class.name"])
def test_a_controller_with_a_policy_that_it_cannot_run_does_not_start(key: str) -> None:
    require_controller(parse(CONTROLLER, f"{key}="))
    with pytest.raises(ConfigError, match=rf"{key}=com\.example\.Policy: expected no policy"):
        require_controller(parse(CONTROLLER, f"{key}=com.example.Policy"))


def test_the_file_is_kept_as_it_is_and_not_shown() -> None:
    config = parse(CONTROLLER, "ssl.key.password=hush", "my.plugin=x")
    assert (config.properties["ssl.key.password"], config.properties["my.plugin"]) == ("hush", "x")
    assert "hush" not in repr(config)


def test_defaults_are_kafkas() -> None:
    config = parse(BROKER)
    assert config.broker_heartbeat_interval_ms == 2000
    assert config.broker_session_timeout_ms == 9000
    assert config.initial_broker_registration_timeout_ms == 60000
    assert config.log_dir_failure_timeout_ms == 30000
    assert config.file_delete_delay_ms == 60000
    assert config.metadata_max_idle_interval_ms == 500
    assert config.socket_request_max_bytes == 104857600
    assert config.controlled_shutdown_enable is True
    assert config.unclean_leader_election_enable is False
    assert config.broker_rack is None
    assert parse(BROKER, "-log.dirs").log_dirs == ("/tmp/kafka-logs",)


def test_defaults_of_kjbods_own_keys() -> None:
    config = parse(BROKER)
    assert (config.kjbod_role, config.kjbod_storage_agent, config.kjbod_controller_rules) == (
        "broker",
        "posix",
        "kip-858",
    )
    assert (config.kjbod_probe_interval_ms, config.kjbod_probe_timeout_ms, config.kjbod_held_timeout_ms) == (
        1000,
        1900,
        30000,
    )
    assert config.kjbod_blind_timeout_ms == 10_000
    assert (config.kjbod_guard_cut_after_ms, config.kjbod_guard_cut_max_brokers) == (-1, 1)
    assert (config.kjbod_slow_ms, config.kjbod_slow_probes, config.kjbod_slow_recovery_probes) == (1000, 2, 3)
    assert (config.kjbod_strike_window_ms, config.kjbod_probe_full_every) == (60_000, 10)
    assert (config.kjbod_host_fault_window_ms, config.kjbod_host_fault_settle_ms) == (1000, 500)
    assert config.kjbod_state_dir == "/var/lib/kjbod"
    assert config.kjbod_reports_dir == "/var/lib/kjbod/reports"
    assert config.kjbod_host == "host1"
    assert config.kjbod_metrics_listener is None


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["kjbod.held.timeout.ms=500"], "kjbod.held.timeout.ms=500: expected at least kjbod.probe.timeout.ms=1900"),
        (["kjbod.blind.timeout.ms=1000"], "kjbod.blind.timeout.ms=1000: expected at least kjbod.probe.timeout.ms=1900"),
        (
            ["kjbod.probe.timeout.ms=20000"],
            "kjbod.blind.timeout.ms=10000 (the default): expected at least kjbod.probe.timeout.ms=20000",
        ),
        (["kjbod.probe.full.every=0"], "kjbod.probe.full.every=0: expected a whole number from 1 to"),
        (["kjbod.slow.ms=0"], "kjbod.slow.ms=0: expected a whole number from 1 to"),
        (["kjbod.host.fault.settle.ms=-1"], "kjbod.host.fault.settle.ms=-1: expected a whole number from 0 to"),
    ],
)
def test_deadlines_that_contradict_each_other_are_refused_in_one_line(lines: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(BROKER, *lines)
    assert [problem in one for one in refused.value.problems] == [True]


def test_a_held_directory_may_be_waited_for_for_ever() -> None:
    assert parse(BROKER, "kjbod.held.timeout.ms=0").kjbod_held_timeout_ms == 0


def test_reports_go_below_the_state_directory_unless_told_otherwise() -> None:
    assert parse(BROKER, "kjbod.state.dir=/srv/kjbod").kjbod_reports_dir == "/srv/kjbod/reports"
    assert parse(BROKER, "kjbod.reports.dir=/srv/reports").kjbod_reports_dir == "/srv/reports"


def test_every_key_has_a_meaning_and_every_own_key_a_default() -> None:
    for name, setting in settings().items():
        assert setting.key.doc.endswith("."), name
        assert setting.field == name.replace(".", "_")
    own = [name for name in settings() if name.startswith("kjbod.")]
    assert len(own) == 39


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ("broker.rack= r1 ", "broker_rack", "r1"),
        ("controlled.shutdown.enable=FALSE", "controlled_shutdown_enable", False),
        ("num.partitions=+7", "num_partitions", 7),
        ("log.dir.failure.timeout.ms=9223372036854775807", "log_dir_failure_timeout_ms", 2**63 - 1),
        ("kjbod.metrics.listener=127.0.0.1:9101", "kjbod_metrics_listener", HostPort("127.0.0.1", 9101)),
        ("kjbod.metrics.listener=:0", "kjbod_metrics_listener", HostPort("", 0)),
        ("kjbod.metrics.listener=", "kjbod_metrics_listener", None),
        ("kjbod.controller.rules=kafka", "kjbod_controller_rules", "kafka"),
        ("metadata.log.dir=/mnt/meta", "metadata_log_dir", "/mnt/meta"),
        ("cordoned.log.dirs=/mnt/d2", "cordoned_log_dirs", ("/mnt/d2",)),
        ("cordoned.log.dirs=*", "cordoned_log_dirs", ("/mnt/d1", "/mnt/d2", "/mnt/d3")),
        ("log.dirs=a, b/c/,/x//y/../z", "log_dirs", ("/home/a/a", "/home/a/b/c", "/x/y/../z")),
        (
            "controller.quorum.voters=5@[::1]:9093,6@h:9094",
            "controller_quorum_voters",
            (Voter(5, "::1", 9093), Voter(6, "h", 9094)),
        ),
    ],
)
def test_values_are_read_as_kafka_reads_them(change: str, field: str, value: object) -> None:
    assert getattr(parse(BROKER, change), field) == value


def test_broker_id_stands_in_for_node_id() -> None:
    assert parse(BROKER, "-node.id", "broker.id=4").node_id == 4
    assert parse(BROKER, "broker.id=1").node_id == 1


def test_log_dir_stands_in_for_log_dirs() -> None:
    assert parse(BROKER, "-log.dirs", "log.dir=/mnt/one").log_dirs == ("/mnt/one",)
    assert parse(BROKER, "log.dir=/mnt/one").log_dirs == ("/mnt/d1", "/mnt/d2", "/mnt/d3")


def test_keys_of_kafka_that_kjbod_does_not_use_are_ignored() -> None:
    parse(BROKER, "no.such.key=whatever", "ssl.keystore.password=secret")


def test_directories_are_the_data_and_the_metadata_directories_sorted() -> None:
    config = parse(BROKER, "log.dirs=/b,/a", "metadata.log.dir=/meta")
    assert config.directories == ("/a", "/b", "/meta")


# Listeners


def test_an_advertised_listener_without_a_host_gets_this_hosts_name() -> None:
    config = parse(BROKER, "listeners=PLAINTEXT://:9092")
    assert config.listeners[0].host == ""
    assert config.advertised_listeners == (Listener("PLAINTEXT", "host1", 9092, "PLAINTEXT", host_given=False),)
    assert parse(BROKER, "listeners=PLAINTEXT://:9092", "kjbod.host=h2").advertised_listeners[0].host == "h2"


def test_a_controller_on_all_interfaces_is_known_by_its_entry_among_the_static_voters() -> None:
    config = parse(CONTROLLER, "listeners=CONTROLLER://0.0.0.0:9093", "controller.quorum.voters=3000@ctl:9193")
    assert config.advertised_controller_listeners == (Listener("CONTROLLER", "ctl", 9193, "PLAINTEXT"),)


def test_an_advertised_controller_listener_wins_over_the_bound_one() -> None:
    config = parse(CONTROLLER, "advertised.listeners=CONTROLLER://ctl:9193")
    assert config.advertised_controller_listeners == (Listener("CONTROLLER", "ctl", 9193, "PLAINTEXT"),)


def test_listener_names_are_upper_case_whatever_the_file_says_and_those_of_controllers_must_be() -> None:
    assert parse(CONTROLLER, "listeners=controller://127.0.0.1:9093").listeners[0].name == "CONTROLLER"
    for lower in ("Controller", "controller", "CONTROLLEr"):
        key = f"controller.listener.names={lower}"
        assert problems(CONTROLLER, key) == (
            f"server.properties: {key}: expected names in upper case, CONTROLLER for {lower}",
        )


def test_ipv4_and_ipv6_listeners_may_share_a_port() -> None:
    listeners = "listeners=PLAINTEXT://127.0.0.1:9092,SIX://[::1]:9092"
    config = parse(
        BROKER, listeners, "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SIX:PLAINTEXT"
    )
    assert [str(listener) for listener in config.listeners] == ["PLAINTEXT://127.0.0.1:9092", "SIX://[::1]:9092"]


def test_a_combined_node_has_both_kinds_of_listeners() -> None:
    config = parse(
        CONTROLLER,
        "process.roles=broker, controller",
        "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    )
    assert [one.name for one in config.advertised_broker_listeners] == ["PLAINTEXT"]
    assert [one.name for one in config.advertised_controller_listeners] == ["CONTROLLER"]


# Mistakes


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("-node.id", "node.id is missing: expected a whole number from 0 to 2147483647"),
        ("node.id=-1", "node.id=-1: expected a whole number from 0 to 2147483647"),
        ("node.id=one", "node.id=one: expected a whole number from 0 to 2147483647"),
        ("broker.id=2", "broker.id=2: expected the same value as node.id=1"),
        ("-process.roles", "process.roles is missing: expected broker, controller or broker,controller"),
        ("process.roles=brokr", "process.roles=brokr: expected broker, controller or broker,controller"),
        ("log.dirs=", "log.dirs=: expected at least one directory"),
        ("log.dirs=/a,,/b", "log.dirs=/a,,/b: expected no empty entry between commas"),
        ("log.dirs=/a,/a/", "log.dirs=/a,/a/: expected each directory once, /a is /a again"),
        ("log.dirs=/a,/x/../a/", "log.dirs=/a,/x/../a/: expected each directory once, /x/../a is /a again"),
        ("log.dirs=/a,/a/b", "log.dirs=/a,/a/b: expected directories beside each other, /a/b lies in /a"),
        (
            "log.dirs=/x/../a/b,/a",
            "log.dirs=/x/../a/b,/a: expected directories beside each other, /x/../a/b lies in /a",
        ),
        ("log.dirs=/,/a", "log.dirs=/,/a: expected directories beside each other, /a lies in /"),
        (
            "metadata.log.dir=/mnt/d1/kraft",
            "metadata.log.dir=/mnt/d1/kraft: expected one of log.dirs, or a directory beside them, not in /mnt/d1",
        ),
        (
            "metadata.log.dir=/mnt/d1/../d1",
            "metadata.log.dir=/mnt/d1/../d1: expected /mnt/d1, as it is spelled in log.dirs",
        ),
        ("log.dirs=/a\\u0000b", "log.dirs=/a\\x00b: expected paths of directories"),
        ("log.dirs=/a\\ud800b", "log.dirs=/a\\ud800b: expected paths of directories"),
        ("metadata.log.dir=/a\\udfff", "metadata.log.dir=/a\\udfff: expected the path of a directory"),
        ("metadata.log.dir=", "metadata.log.dir=: expected the path of a directory"),
        ("cordoned.log.dirs=/x", "cordoned.log.dirs=/x: expected entries of log.dirs, spelled as there, or *, not /x"),
        (
            "broker.session.timeout.ms=9s",
            "broker.session.timeout.ms=9s: expected a whole number from -2147483648 to 2147483647 (ms)",
        ),
        (
            "broker.session.timeout.ms=2147483648",
            "broker.session.timeout.ms=2147483648: expected a whole number from -2147483648 to 2147483647 (ms)",
        ),
        (
            "default.replication.factor=40000",
            "default.replication.factor=40000: expected a whole number from -32768 to 32767",
        ),
        ("controlled.shutdown.enable=yes", "controlled.shutdown.enable=yes: expected true or false"),
        ("kjbod.controller.rules=zk", "kjbod.controller.rules=zk: expected kip-858 or kafka"),
        ("kjbod.role=ghost", "kjbod.role=ghost: expected broker"),
        (
            "kjbod.guard.cut.after.ms=-2",
            "kjbod.guard.cut.after.ms=-2: expected a whole number from -1 to 9223372036854775807 (ms)",
        ),
        (
            "kjbod.guard.cut.max.brokers=-1",
            "kjbod.guard.cut.max.brokers=-1: expected a whole number from 0 to 2147483647",
        ),
        (
            "kjbod.prob.interval.ms=5",
            "kjbod.prob.interval.ms=5: unknown key; did you mean kjbod.probe.interval.ms?",
        ),
        ("kjbod.metrics.listener=9100", "kjbod.metrics.listener=9100: expected host:port, an IPv6 host in brackets"),
        (
            "kjbod.state.dir=/mnt/d1/state",
            "kjbod.state.dir=/mnt/d1/state: expected a directory outside the disks that are watched, not below /mnt/d1",
        ),
        (
            "log.dirs=/var",
            "kjbod.state.dir=/var/lib/kjbod (the default): expected a directory outside the disks that are watched, "
            "not below /var",
        ),
        (
            "-controller.quorum.bootstrap.servers",
            "controller.quorum.bootstrap.servers is missing: expected host:port of the controllers here, "
            "or id@host:port of each in controller.quorum.voters",
        ),
        (
            "controller.quorum.bootstrap.servers=ctl",
            "controller.quorum.bootstrap.servers=ctl: expected host:port, an IPv6 host in brackets, not ctl",
        ),
        (
            "controller.quorum.bootstrap.servers=h:70000",
            "controller.quorum.bootstrap.servers=h:70000: expected a port from 0 to 65535, not h:70000",
        ),
        ("controller.quorum.voters=h:9", "controller.quorum.voters=h:9: expected id@host:port, not h:9"),
        ("controller.quorum.voters=2@h:9,2@i:9", "controller.quorum.voters=2@h:9,2@i:9: expected each id once"),
        (
            "controller.quorum.voters=1@h:9",
            "controller.quorum.voters=1@h:9: expected other nodes only, node.id=1 is a broker's",
        ),
        (
            "-controller.listener.names",
            "controller.listener.names is missing: expected the name of the controllers' listener",
        ),
        ("listeners=9092", "listeners=9092: expected NAME://host:port, not 9092"),
        ("listeners=", "listeners=: expected NAME://host:port,..."),
        (
            "listeners=PLAINTEXT://h:99999",
            "listeners=PLAINTEXT://h:99999: expected a port from 0 to 65535, not PLAINTEXT://h:99999",
        ),
        (
            "listeners=EXTERNAL://h:1",
            "listeners=EXTERNAL://h:1: expected a security protocol for EXTERNAL in listener.security.protocol.map, "
            "not EXTERNAL://h:1",
        ),
        (
            "listeners=PLAINTEXT://h:1,PLAINTEXT://h:2",
            "listeners=PLAINTEXT://h:1,PLAINTEXT://h:2: "
            "expected a different name for each listener, not PLAINTEXT again",
        ),
        (
            "listeners=PLAINTEXT://h:1,CONTROLLER://h:1",
            "listeners=PLAINTEXT://h:1,CONTROLLER://h:1: expected a different port for each listener, not 1 again",
        ),
        (
            "listeners=PLAINTEXT://0.0.0.0:1",
            "listeners=PLAINTEXT://0.0.0.0:1: "
            "expected an address that others can reach in advertised.listeners, not 0.0.0.0",
        ),
        (
            "advertised.listeners=PLAINTEXT://h:65536",
            "advertised.listeners=PLAINTEXT://h:65536: expected a port from 0 to 65535, not PLAINTEXT://h:65536",
        ),
        (
            "listener.security.protocol.map=PLAINTEXT:TLS",
            "listener.security.protocol.map=PLAINTEXT:TLS: expected NAME:PROTOCOL, "
            "the protocol one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
        (
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT: "
            "expected an entry for the controllers' listener CONTROLLER",
        ),
        (
            "controller.listener.names=PLAINTEXT",
            "controller.listener.names=PLAINTEXT: expected names that do not appear in listeners of a broker",
        ),
        (
            "inter.broker.listener.name=SSL",
            "inter.broker.listener.name=SSL: expected a listener that is advertised (PLAINTEXT), not SSL",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_key_value_and_what_is_expected(change: str, expected: str) -> None:
    assert f"server.properties: {expected}" in problems(BROKER, change)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            ("inter.broker.listener.name=C2",),
            "inter.broker.listener.name=C2: expected a listener that listener.security.protocol.map has, not C2",
        ),
        (
            ("listeners=PLAINTEXT://h:1",),
            "controller.listener.names=CONTROLLER: "
            "expected names that appear in listeners, as this node is a controller",
        ),
        (
            ("listeners=CONTROLLER://h:1,PLAINTEXT://h:2",),
            "listeners=CONTROLLER://h:1,PLAINTEXT://h:2: "
            "expected only listeners of controller.listener.names, as this node is a controller only",
        ),
        (
            ("controller.quorum.voters=1@h:9",),
            "controller.quorum.voters=1@h:9: expected this controller, node.id=3000, among the voters",
        ),
        (
            ("process.roles=broker,controller",),
            "listeners=CONTROLLER://127.0.0.1:9093: "
            "expected at least one listener that is not a controllers' one, as this node is a broker",
        ),
    ],
)
def test_roles_and_listeners_must_fit(changes: tuple[str, ...], expected: str) -> None:
    assert f"server.properties: {expected}" in problems(CONTROLLER, *changes)


def test_all_mistakes_are_told_at_once() -> None:
    found = problems(BROKER, "-node.id", "log.dirs=/a,,/b", "num.partitions=many", "kjbod.rol=broker")
    assert [line.split(": ")[1].split("=")[0].split(" ")[0] for line in found] == [
        "kjbod.rol",
        "num.partitions",
        "node.id",
        "log.dirs",
    ]


def test_a_value_that_no_config_provider_has_is_refused_and_not_taken_literally() -> None:
    (line,) = problems(BROKER, "config.providers=vault", "broker.rack=${vault:RACK}")
    assert line.startswith("server.properties: broker.rack=${vault:RACK}: ")
    assert "config.providers.vault.class is missing" in line


def test_a_value_is_taken_from_its_config_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RACK", "r7")
    provider = "config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider"
    assert parse(BROKER, "config.providers=env", provider, "broker.rack=${env:RACK}").broker_rack == "r7"


def test_without_providers_a_dollar_is_a_dollar() -> None:
    assert parse(BROKER, "broker.rack=${env:RACK}").broker_rack == "${env:RACK}"


def test_a_malformed_escape_is_told() -> None:
    with pytest.raises(ConfigError, match=r"server.properties: Malformed \\uxxxx encoding: \\u12"):
        parse_config(b"a=\\u12", source="server.properties", working_directory="/", host="h")


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "none")
    assert caught.value.problems == (
        f"{tmp_path}/none: No such file or directory: expected a readable server.properties of Kafka",
    )


def test_a_directory_instead_of_a_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Is a directory: expected a readable server.properties"):
        load_config(tmp_path)


def test_a_path_that_cannot_be_one_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"expected the path of Kafka's server.properties"):
        load_config("a\0b")


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    path.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="at most 1048576 bytes"):
        load_config(path)


def test_garbage_is_told_as_missing_keys_not_as_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "garbage"
    path.write_bytes(bytes(range(256)).replace(b"\\", b"") * 20)
    with pytest.raises(ConfigError, match=r"node.id is missing"):
        load_config(path)


def test_a_file_from_disk_is_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "server.properties"
    path.write_text(BROKER.replace("/mnt/d1,/mnt/d2,/mnt/d3", "data"))
    monkeypatch.chdir(tmp_path)
    assert load_config(path).log_dirs == (f"{tmp_path}/data",)


# Roles


def test_the_agent_refuses_a_controllers_file() -> None:
    (problem,) = agent_problems(parse(CONTROLLER))
    assert "process.roles=controller: expected broker, which is what kjbod agent runs" in problem
    (problem,) = broker_problems(parse(CONTROLLER))
    assert problem.endswith("process.roles=controller: expected the file of a broker")


def test_the_controller_refuses_a_brokers_file() -> None:
    with pytest.raises(ConfigError, match=r"expected controller, which is what kjbod controller runs"):
        require_controller(parse(BROKER))


def test_what_controllers_ask_for_and_the_file_does_not_have_is_named_to_an_agent_alone() -> None:
    config = parse(BROKER, "listener.security.protocol.map=CONTROLLER:SASL_SSL,PLAINTEXT:PLAINTEXT")
    (problem,) = agent_problems(config)
    assert problem.startswith(
        "server.properties: listener.name.controller.gssapi.sasl.jaas.config is missing: expected the login of GSSAPI"
    )
    assert broker_problems(config) == []  # who only reads the disks of this host speaks with nobody


@pytest.mark.parametrize(
    "line",
    [
        "node.id=x",
        "process.roles=x",
        "log.dirs=,",
        "listeners=x",
        "advertised.listeners=x",
        "controller.listener.names=,",
        "controller.quorum.voters=x",
        "controller.quorum.bootstrap.servers=x",
        "listener.security.protocol.map=x",
        "metadata.log.dir=",
        "broker.heartbeat.interval.ms=x",
        "kjbod.metrics.listener=x",
    ],
)
def test_a_mistake_hides_no_other_one_and_makes_none_up(line: str) -> None:
    seen: list[Config] = []

    def note(config: Config) -> list[str]:
        seen.append(config)
        return ["and this"]

    with pytest.raises(ConfigError) as caught:
        parse_config(
            f"{BROKER}\n{line}\n".encode(), agent_problems, note, source="s", working_directory="/", host="here"
        )
    assert len(seen) == 1
    assert caught.value.problems[-1] == "and this"
    assert all(line.partition("=")[0] in problem for problem in caught.value.problems[:-1])


def test_the_controller_is_a_quorum_of_one() -> None:
    with pytest.raises(ConfigError, match="kjbod controller is a quorum of one"):
        require_controller(parse(CONTROLLER, "controller.quorum.voters=3000@h:9093,3001@i:9093"))


# Connections of some hosts


def test_some_hosts_may_have_another_number_of_connections() -> None:
    config = parse(
        CONTROLLER,
        "max.connections.per.ip=0",
        "max.connections.per.ip.overrides= 10.0.0.1:5 , tools.example.com:0,::1:7,fe80::1%eth0:8, 10.0.0.1:6",
    )
    assert config.max_connections_per_ip_overrides == {
        "10.0.0.1": 6,
        "tools.example.com": 0,
        "::1": 7,
        "fe80::1%eth0": 8,
    }
    assert parse(CONTROLLER).max_connections_per_ip_overrides == {}
    assert parse(CONTROLLER, "max.connections.per.ip.overrides=").max_connections_per_ip_overrides == {}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("10.0.0.1", "expected host:count,..., an IPv6 host without brackets, not 10.0.0.1"),
        (",a:5", "expected host:count,..., an IPv6 host without brackets, not nothing"),
        ("a:1,,b:2", "expected host:count,..., an IPv6 host without brackets, not nothing"),
        ("[::1]:5", "expected host:count,..., an IPv6 host without brackets, not [::1]:5"),
        ("a b:5", "expected host:count,..., an IPv6 host without brackets, not a b:5"),
        ("a:many", "expected a whole number up to 2147483647 after a:"),
        ("a:-2147483649", "expected a whole number up to 2147483647 after a:"),
        ("a:", "expected a whole number up to 2147483647 after a:"),
        ("b:1,a:2147483648", "expected a whole number up to 2147483647 after a:"),
    ],
)
def test_connections_of_hosts_that_cannot_be_are_one_line(value: str, expected: str) -> None:
    assert problems(CONTROLLER, f"max.connections.per.ip.overrides={value}") == (
        f"server.properties: max.connections.per.ip.overrides={value}: {expected}",
    )


def test_nobody_could_connect_where_no_host_may() -> None:
    assert problems(CONTROLLER, "max.connections.per.ip=0") == (
        "server.properties: max.connections.per.ip=0: expected at least 1, or the hosts that may connect in "
        "max.connections.per.ip.overrides",
    )


def test_names_stand_for_all_their_addresses_and_one_without_any_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"tools": ["10.0.0.1", "fd00::1"], "10.0.0.1": ["10.0.0.1"], "0:0::1": ["::1"]}

    def resolve(host: str, port: None, **_: object) -> list[tuple[object, ...]]:
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(0, 0, 0, "", (address, 0)) for address in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    config = parse(CONTROLLER, "max.connections.per.ip.overrides=tools:5,10.0.0.1:6,0:0::1:0")
    assert asyncio.run(connections_by_address(config, Names())) == {"10.0.0.1": 6, "fd00::1": 5, "::1": 0}
    with pytest.raises(ConfigError) as caught:
        asyncio.run(
            connections_by_address(parse(CONTROLLER, "max.connections.per.ip.overrides=tools:5,a:1,b:2"), Names())
        )
    assert caught.value.problems == (
        "server.properties: max.connections.per.ip.overrides=a:1: "
        "expected an address, or a name that can be resolved on this host (Name or service not known)",
        "server.properties: max.connections.per.ip.overrides=b:2: "
        "expected an address, or a name that can be resolved on this host (Name or service not known)",
    )


def test_a_name_that_the_servers_cannot_look_up_now_is_no_mistake_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def resolve(host: str, port: None, **_: object) -> list[tuple[object, ...]]:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(UnresolvedError, match="cannot resolve tools: Temporary failure") as caught:
        asyncio.run(connections_by_address(parse(CONTROLLER, "max.connections.per.ip.overrides=tools:5"), Names()))
    assert caught.value.exit_code != EXIT_CONFIG


def test_the_secret_key_of_delegation_tokens_is_resolved_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    key, provider = "delegation.token.secret.key", "org.apache.kafka.common.config.provider.EnvVarConfigProvider"
    monkeypatch.setenv("TOKENS", "hush")
    lines = ("config.providers=env", f"config.providers.env.class={provider}")
    config = parse(BROKER, *lines, f"{key}=${{env:TOKENS}}")
    assert config.delegation_token_secret_key == "hush"
    assert "hush" not in repr(config)
    (line,) = problems(BROKER, *lines, f"{key}=hush${{env:NONE}}")
    assert line == "server.properties: delegation.token.secret.key: ${env:NONE}: the environment has no such variable"


def test_a_secret_key_may_end_with_what_python_takes_for_a_blank() -> None:
    config = parse(BROKER, "delegation.token.secret.key=voilà")
    assert config.delegation_token_secret_key == "voilà".encode().decode("latin-1")


@pytest.mark.parametrize("line", [(), ("delegation.token.secret.key=",), ("delegation.token.secret.key=  ",)])
def test_without_a_secret_key_there_are_no_delegation_tokens(line: tuple[str, ...]) -> None:
    assert parse(BROKER, *line).delegation_token_secret_key is None


# Combined nodes


KAFKAS_OWN = (Path(__file__).parents[1] / "data" / "kafka_server.properties").read_text()
"""``process.roles=broker,controller``"""


def own(*lines: str) -> Config:
    text = "\n".join((KAFKAS_OWN, *lines, ""))
    return parse_config(text.encode(), source="server.properties", working_directory="/", host="host1")


def test_kafkas_own_server_properties_is_one_that_a_server_can_run() -> None:
    config = own()
    assert server_problems(config) == []
    require_controller(config)
    assert config.metadata_log_dir == "/tmp/kraft-combined-logs" == config.log_dirs[0]
    assert [one.name for one in config.advertised_broker_listeners] == ["PLAINTEXT"]
    assert [one.port for one in config.advertised_controller_listeners] == [9093]


@pytest.mark.parametrize(("check", "role"), [(agent_problems, "broker"), (controller_problems, "controller")])
def test_half_a_server_refuses_a_combined_file_and_names_the_command_for_it(check: Check, role: str) -> None:
    command = {"broker": "agent"}.get(role, role)
    assert list(check(own())) == [
        f"server.properties: process.roles=broker,controller: expected {role}, which is what kjbod {command} runs; "
        "kjbod server runs both"
    ]


def test_a_server_asks_of_a_file_what_each_of_its_roles_asks() -> None:
    assert server_problems(parse(BROKER)) == server_problems(parse(CONTROLLER)) == []
    policy = "create.topic.policy.class.name=com.example.Policy"
    (problem,) = server_problems(own(policy))
    assert f"{policy}: expected no policy" in problem
    with pytest.raises(ConfigError, match="expected no policy"):
        require_controller(own(policy))


# A guard


@pytest.mark.parametrize(
    ("cut_after_ms", "most_ms"),
    [(-1, 30_000), (-1, 500), (1_000, 30_000), (30_000, 30_000), (1_000, 1_000), (60_000, 60_000)],
)
def test_a_guard_waits_for_a_disk_for_as_long_as_kafka_may_at_most_or_by_the_kind_of_disk(
    cut_after_ms: int, most_ms: int
) -> None:
    config = parse(BROKER, f"kjbod.guard.cut.after.ms={cut_after_ms}", f"log.dir.failure.timeout.ms={most_ms}")
    assert (guard_problems(config), config.kjbod_guard_cut_after_ms) == ([], cut_after_ms)


@pytest.mark.parametrize(
    ("cut_after_ms", "most_ms"),
    [(0, 30_000), (1, 30_000), (999, 30_000), (30_001, 30_000), (4_001, 4_000), (500, 500), (1_000, 500)],
)
def test_a_guard_refuses_a_wait_that_is_too_short_or_longer_than_kafkas_own_in_one_line(
    cut_after_ms: int, most_ms: int
) -> None:
    config = parse(BROKER, f"kjbod.guard.cut.after.ms={cut_after_ms}", f"log.dir.failure.timeout.ms={most_ms}")
    assert guard_problems(config) == [
        f"server.properties: kjbod.guard.cut.after.ms={cut_after_ms}: expected at least 1000, at most "
        f"log.dir.failure.timeout.ms={most_ms}; or -1: by the kind of disk"
    ]
    assert agent_problems(config) == broker_problems(config) == [], "no matter to others"


def test_a_wait_that_is_refused_is_named_with_the_file_that_has_it(tmp_path: Path) -> None:
    server, own = tmp_path / "server.properties", tmp_path / "guard.properties"
    server.write_text(BROKER)
    own.write_text("kjbod.guard.cut.after.ms=500\n")
    with pytest.raises(ConfigError) as caught:
        load_guard_config(server, own, guard_problems)
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [str(own)]


def test_a_guard_tells_a_wait_that_is_no_number_once_and_beside_it_that_the_file_is_a_controllers() -> None:
    with pytest.raises(ConfigError) as caught:
        text = f"{CONTROLLER}kjbod.guard.cut.after.ms=3s\n".encode()
        parse_config(text, guard_problems, source="s", working_directory="/", host="here")
    assert list(caught.value.problems) == [
        "s: kjbod.guard.cut.after.ms=3s: expected a whole number from -1 to 9223372036854775807 (ms)",
        "s: process.roles=controller: expected the file of a broker",
    ]


@pytest.mark.parametrize("number", [0, 1, 5])
def test_how_many_brokers_may_lose_a_directory_at_once_is_the_sites_to_say(number: int) -> None:
    config = parse(BROKER, f"kjbod.guard.cut.max.brokers={number}")
    assert (guard_problems(config), config.kjbod_guard_cut_max_brokers) == ([], number)


# Kafka's own files that were refused


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        (
            "controller.quorum.bootstrap.servers=CONTROLLER://h:9093,SASL_SSL://[::1]:9094,h:9093",
            "controller_quorum_bootstrap_servers",
            (HostPort("h", 9093), HostPort("::1", 9094), HostPort("h", 9093)),
        ),
        ("controller.quorum.voters=+5@CONTROLLER://h:9093", "controller_quorum_voters", (Voter(5, "h", 9093),)),
        ("log.dirs=/a,/b,/a", "log_dirs", ("/a", "/b")),
        ("process.roles=broker,broker", "process_roles", frozenset({"broker"})),
        ("metadata.log.dir=/mnt", "metadata_log_dir", "/mnt"),
        ("cordoned.log.dirs=/mnt/d2,/mnt/d2", "cordoned_log_dirs", ("/mnt/d2",)),
        ("max.connections.per.ip.overrides=h:5,", "max_connections_per_ip_overrides", {"h": 5}),
        ("max.connections.per.ip.overrides=h:-1,:7", "max_connections_per_ip_overrides", {"h": 0, "127.0.0.1": 7}),
        ("broker.heartbeat.interval.ms=0", "broker_heartbeat_interval_ms", 1),
        ("broker.session.timeout.ms=-1", "broker_session_timeout_ms", 1),
        ("socket.connection.setup.timeout.ms=-9223372036854775808", "socket_connection_setup_timeout_ms", 1),
        ("socket.send.buffer.bytes=-2", "socket_send_buffer_bytes", -1),
        ("max.connection.creation.rate=0", "max_connection_creation_rate", 1),
        ("queued.max.request.bytes=-5", "queued_max_request_bytes", -1),
        ("default.replication.factor=-1", "default_replication_factor", -1),
        ("allow.everyone.if.no.acl.found=yes", "allow_everyone_if_no_acl_found", False),
    ],
)
def test_a_file_with_which_kafka_runs_is_taken(change: str, field: str, value: object) -> None:
    assert getattr(parse(BROKER, change), field) == value


def test_of_two_entries_for_a_listener_the_later_counts() -> None:
    both = "CONTROLLER:SSL,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
    assert parse(BROKER, f"listener.security.protocol.map={both}").controller_protocol == "PLAINTEXT"
    assert (
        "expected each name in one spelling"
        in problems(BROKER, f"listener.security.protocol.map={both}controller:SSL")[0]
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (("advertised.listeners=",), "advertised.listeners=: expected NAME://host:port"),
        (("inter.broker.listener.name=",), "inter.broker.listener.name=: expected the name of a listener"),
        (
            ("-listeners", "listener.security.protocol.map=CONTROLLER:PLAINTEXT,INTERNAL:PLAINTEXT"),
            "listeners is missing: expected NAME://host:port,..., as the map has no PLAINTEXT",
        ),
        (("cordoned.log.dirs=/mnt/d1/",), "cordoned.log.dirs=/mnt/d1/: expected entries of log.dirs, spelled as there"),
        (("cordoned.log.dirs=*,/mnt/d1",), "cordoned.log.dirs=*,/mnt/d1: expected entries of log.dirs"),
        (("queued.max.request.bytes=1",), "queued.max.request.bytes=1: expected at least socket.request.max.bytes="),
        (("connections.max.idle.ms=100",), "connections.max.idle.ms=100: expected more than connection.failed"),
        (("security.inter.broker.protocol=plaintext",), "security.inter.broker.protocol=plaintext: expected one of"),
        (("log.dir=",), "log.dir=: expected at least one directory"),
    ],
)
def test_a_file_with_which_kafka_does_not_start_is_refused(changes: tuple[str, ...], expected: str) -> None:
    (line,) = problems(BROKER, *changes)
    assert line.startswith(f"server.properties: {expected}")


def test_a_number_of_a_million_digits_is_a_mistake_and_no_crash() -> None:
    assert "node.id=000" in problems(BROKER, f"node.id={'0' * 500_000}1")[0]
    assert parse(BROKER, f"node.id={'0' * 900}7").node_id == 7
