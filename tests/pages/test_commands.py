"""Every command line of a page is taken by the parser that it is for, and is run by a test.

Some tests read a page and run what stands there: see ``RUN``. A line that takes more than a page can say, an hour or a
network, is in ``HELD`` by its form, with the test that runs the like of it.
"""

import re

import pytest

from kjbod.faults.catalog import FAULTS
from tests.pages.commands import RefusedError, assignments, bare, check_mentioned, form, is_ours, simple_commands
from tests.pages.markdown import ROOT, Command, Page, pages

PAGES = pages()
LANGUAGES = {"sh", "console", "ini", "yaml", ""}
SHELL = re.compile(r"^\s*(\$ |sudo |kjbod |\./scripts/)", re.MULTILINE)

FIRST_LOOK = "tests/pages/test_first_look.py::"
OPERATIONS = "tests/pages/test_operations.py::test_an_operators_page_can_be_typed_from_its_top_to_its_end"
PIPELINE = "tests/fleet/test_pipeline.py::"
INSTALL = "tests/pages/test_install.py::test_the_page_installs_formats_and_starts_an_agent"
ACTS = "tests/systemd/test_guard_acts.py::"
REPLACED = (
    "tests/guard/test_act_kafka.py::test_a_disk_that_hangs_costs_that_disk_alone_and_is_replaced_as_the_runbook_says"
)
RUN = {
    "kjbod/fleet/README.md#try-it": f"{PIPELINE}test_each_line_of_the_page_does_what_it_says",
    "kjbod/fleet/README.md#upkeep-of-a-lake": f"{PIPELINE}test_a_lake_is_kept_by_the_lines_of_its_page",
    "README.md#i-have-a-kafka-cluster": f"{FIRST_LOOK}test_a_kafka_cluster_is_looked_at_and_nothing_is_written",
    "kjbod/cli/README.md": f"{FIRST_LOOK}test_the_metadata_and_features_of_a_kafka_cluster_are_shown",
    "agent/README.md": OPERATIONS,
    "systemd/README.md#a-guard-that-acts": f"{ACTS}test_a_guard_acts_with_the_rights_of_its_hand_alone",
    "systemd/README.md#a-guard-beside-a-kafka-broker": f"{ACTS}test_a_unit_of_a_broker_passes_the_gate",
    "systemd/README.md#remove-it": f"{ACTS}test_a_unit_of_a_broker_passes_the_gate",
    "systemd/README.md#before-the-broker-starts": f"{ACTS}test_a_unit_of_a_broker_passes_the_gate",
    "systemd/README.md#from-the-alert-to-the-replaced-disk": REPLACED,
    "systemd/README.md#the-health-that-disks-tell-of-themselves": (
        "tests/systemd/test_smart_units.py::test_the_helper_asks_smartctl_with_two_capabilities_and_nothing_else"
    ),
    "systemd/README.md#install": INSTALL,
    "systemd/README.md#configure-format-start": INSTALL,
}
"""Pages, or sections of them, whose lines a test reads and runs in their order."""

FAULTS_COMMAND = "tests/scripts/test_faults.py::"
BESIDE = "tests/guard/test_beside_kafka.py::test_a_guard_beside_a_real_broker_says_what_kafka_does_not_notice"
BROKERS = "tests/controller/test_real_kafka.py::test_no_acknowledged_record_is_lost_by_sigkill_of_the_controller"
COST = "tests/scripts/test_agent_cost.py::test_a_short_run_measures_a_real_agent_and_a_real_broker"
COST_OF_GUARD = "tests/scripts/test_agent_cost.py::test_a_short_run_measures_a_guard_beside_a_real_broker"
UNIVERSE = "tests/scripts/test_universe_cli.py::test_one_story_is_told_with_all_that_happens_in_it"
FUZZED = "tests/controller/test_fuzz.py::test_a_controller_process_survives_what_may_change_nothing"
GATE = "tests/guard/test_gate_kafka.py::test_a_broker_starts_beside_disks_that_hang_when_its_unit_has_the_gate"
KEPT = "tests/scripts/test_metadata_start.py::test_a_start_fetches_only_what_it_lacks_and_knows_the_same"
MASKED = "tests/guard/test_act_kafka.py::test_a_disk_that_carries_more_is_masked_and_released"
MATRIX = "tests/system/test_detection_matrix.py::test_every_fault_gets_the_right_verdict_and_no_other_disk_gets_any"
FAILED_OVER = "tests/scripts/test_quorum_bench.py::test_a_failed_disk_is_recorded_by_the_next_controller"
FLOODED = "tests/scripts/test_handshakes_bench.py::test_a_flood_is_survived_and_its_figures_are_told"
MEASURED = "tests/scripts/test_controller_bench.py::test_a_run_measures_our_controller_and_tells_what_it_measured"
MEANS = (
    "tests/scripts/test_guard_bench.py::test_a_hung_disk_that_is_cut_and_evicted_costs_clients_a_moment_and_no_record"
)
REACH = (
    "tests/scripts/test_guard_reach.py::"
    "test_a_guard_keeps_the_broker_beside_a_hung_disk_and_leaves_one_alone_that_is_slow"
)
QUIET = "tests/system/test_false_positives.py::test_a_few_seconds_of_bad_conditions_fail_no_directory"
IDLE_GUARDS = "tests/system/test_false_positives.py::test_a_few_seconds_of_bad_conditions_have_no_guard_do_anything"
SET_UP = "tests/scripts/test_scripts.py::test_who_sets_up_less_than_is_there_changes_nothing"
STARTS = "tests/scripts/test_replicas.py::test_the_quickest_run_measures_an_agent_on_real_directories_and_one_in_memory"
SECURED = "tests/security/test_secured_controller.py::test_an_agent_registers_and_serves_and_commands_read_the_metadata"
EVALUATED = "tests/fleet/test_insight.py::test_evaluation_counts_only_alarms_before_the_failure"
QUESTIONED = "tests/scripts/test_fleet_bench.py::test_all_engines_answer_the_same"
RELEASES = "tests/system/test_compatibility.py::test_another_release_of_kafka_works_with_kjbod"
HELD = {
    "kjbod fleet import --lake": "tests/fleet/test_imports.py::test_ten_real_days_and_all_real_tickets",
    "scripts/bench/fleet-health --lake": EVALUATED,
    "scripts/bench/fleet": QUESTIONED,
    "scripts/bench/fleet --parts --sizes": QUESTIONED,
    "install -D -m -t": INSTALL,
    "install -d -o -g": INSTALL,
    "systemctl": INSTALL,
    "printf": f"{PIPELINE}test_the_units_run_commands_that_there_are_with_what_their_page_sets",
    "scripts/setup --base": SET_UP,
    "scripts/setup --fleet": SET_UP,
    "scripts/demo": "tests/system/test_demo.py::test_demo_tells_the_whole_story",
    "scripts/test": "scripts/check::scripts/test",  # the very run that this is part of
    "scripts/test --depth --seed -s": "tests/controller/test_differential.py::test_long_stories_at_each_level",
    "kjbod random-uuid": "tests/cli/test_main.py::test_random_uuid_prints_one_id",
    "kjbod format -t -c": "tests/cli/test_main.py::test_format_and_info_through_the_command",
    "kjbod guard check -c": BESIDE,
    "kjbod guard check --gate -c --guard-config": GATE,
    "kjbod guard run -c --guard-config": BESIDE,
    "kjbod guard history -c --guard-config": MASKED,
    "kjbod guard release -c --guard-config": MASKED,
    "kjbod guard restore -c --guard-config": MASKED,
    "kjbod status -c --guard-config": BESIDE,
    "kjbod status": "tests/cli/test_broker_files.py::test_each_command_says_on_stderr_which_file_it_uses",
    "apt": "tests/scripts/test_release.py::test_a_package_installs_and_runs_with_what_it_has",
    "kjbod log-dirs -c --guard-config --replicas": BESIDE,
    "kjbod features describe --bootstrap-controller --command-config": SECURED,
    "kjbod metadata shell --bootstrap-controller --command-config": SECURED,
    "kjbod metadata dump -c": SECURED,
    "kjbod agent -c": "tests/agent/test_daemon.py::test_an_agent_that_starts_registers_once",
    "kjbod features downgrade --bootstrap-controller --feature --unsafe --dry-run": (
        "tests/cli/test_features.py::test_what_would_be_lost_is_named_before_kafka_refuses"
    ),
    "kafka-configs.sh --bootstrap-server --alter --entity-type --entity-name --add-config": (
        "tests/controller/test_administration_kafka.py::test_users_of_real_brokers_have_passwords_quotas_and_rights"
    ),
    "kafka-delegation-tokens.sh --bootstrap-server --command-config --create --max-life-time-period": (
        "tests/security/test_delegation_tokens_kafka.py::"
        "test_tokens_that_kafkas_tool_makes_are_logins_everywhere_and_kafka_reads_them"
    ),
    "kjbod fleet report --reports --out": (
        "tests/fleet/test_report.py::test_the_command_leaves_a_report_says_where_and_cleans_up"
    ),
    "kjbod faults list": f"{FAULTS_COMMAND}test_list_names_every_fault_with_what_it_does",
    "kjbod faults disk create --log-dir": f"{FAULTS_COMMAND}test_a_scratch_disk_outlives_the_command",
    "kjbod faults disk remove": f"{FAULTS_COMMAND}test_a_scratch_disk_outlives_the_command",
    "kjbod faults inject --for": f"{FAULTS_COMMAND}test_a_fault_for_some_time_ends_by_itself",
    "kjbod faults status": f"{FAULTS_COMMAND}test_what_is_overdue_says_so",
    "kjbod faults undo --all": f"{FAULTS_COMMAND}test_undo_all_mends_everything_and_touches_nothing_else",
    "systemctl --now": "tests/systemd/test_units.py::test_several_agents_run_side_by_side",
    # Long forms: the tests run the short ones.
    "scripts/bench/agent-cost": COST,
    "scripts/bench/agent-cost --kafka": COST,
    "scripts/bench/agent-cost --guard": COST_OF_GUARD,
    "scripts/bench/controller": MEASURED,
    "scripts/bench/controller --only": MEASURED,
    "scripts/bench/controller --only --sizes": MEASURED,
    "scripts/bench/handshakes": FLOODED,
    "scripts/bench/handshakes --count": FLOODED,
    "scripts/bench/controller --no-kafka --only --ladder": MEASURED,
    "scripts/bench/controller --only --sizes --rounds --rules": MEASURED,
    "scripts/bench/controller --quick": MEASURED,
    "scripts/bench/detection": MATRIX,
    "scripts/bench/detection --faults --fs --repeat --no-kafka": MATRIX,
    "scripts/bench/detection --fs --repeat --kafka-wait": MATRIX,
    "scripts/bench/detection --quick": MATRIX,
    "scripts/bench/false-positives": QUIET,
    "scripts/bench/false-positives --seconds --conditions": QUIET,
    "scripts/bench/false-positives --guard --minutes": IDLE_GUARDS,
    "scripts/bench/quorum": FAILED_OVER,
    "scripts/bench/quorum --cases --n": FAILED_OVER,
    "scripts/bench/guard": MEANS,
    "scripts/bench/guard --means --phases --repeat --for": MEANS,
    "scripts/bench/guard --means --faults --fs": MEANS,
    "scripts/bench/guard --means --fs": MEANS,
    "scripts/bench/guard --means --fs --back --phases": MEANS,
    "scripts/bench/guard --quick": MEANS,
    "scripts/bench/guard --table": MEANS,
    "scripts/bench/guard --for": REACH,
    "scripts/bench/guard --forms --faults --hung --n": REACH,
    "scripts/bench/guard --forms --faults --hung --watch": REACH,
    "scripts/bench/guard --forms --faults --hung --n --watch": REACH,
    "scripts/bench/guard --faults --hung --n --watch": REACH,
    "scripts/bench/metadata-start": KEPT,
    "scripts/bench/metadata-start --alike": KEPT,
    "scripts/bench/replicas": STARTS,
    "scripts/bench/replicas --quick": STARTS,
    "scripts/bench/replicas --replicas --memory-replicas": STARTS,
    "scripts/bench/replicas --replicas --memory-replicas --cases --no-moves": STARTS,
    "scripts/compatibility": RELEASES,
    "scripts/compatibility --versions --rows": RELEASES,
    "scripts/compatibility --versions --rows --again": RELEASES,
    "scripts/universe --for": UNIVERSE,
    "scripts/universe --seed --steps --for": "tests/scripts/test_universe_cli.py"
    "::test_it_ends_when_the_cores_have_handled_so_many_events",
    "scripts/universe --seed --stories": UNIVERSE,
    "scripts/universe --mutants --for": "tests/scripts/test_universe_cli.py"
    "::test_stories_find_a_rule_that_is_broken_on_purpose",
    "scripts/fuzz": FUZZED,
    "scripts/fuzz --frames --seed": FUZZED,
    "scripts/real-brokers": BROKERS,
    "scripts/real-brokers --secured": (
        "tests/security/test_peers_kafka.py::"
        "test_no_peer_gets_further_than_at_kafkas_controller_and_none_without_rights_changes_anything"
    ),
    "scripts/real-brokers --controller --parts --minutes --seed": BROKERS,
    "scripts/real-brokers --parts --deeds": BROKERS,
}
"""Tests that run what a line stands for, by the line's form; the beginning of a test's name is enough."""


def is_run(command: Command) -> bool:
    """Whether a test runs it from the page."""
    return bool({command.page, f"{command.page}#{command.section}"} & RUN.keys())


def forms(command: Command, config: pytest.Config) -> list[str]:
    """Of each command in a line."""
    return [form(bare(words), config) for words in simple_commands(command.text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_shows_of_a_shell_is_marked_as_such(page: Page) -> None:
    """Otherwise nobody would look at it here."""
    assert page.languages() <= LANGUAGES
    assert [lines for _, lines in page.blocks("") if SHELL.search("\n".join(lines))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_line_is_taken_by_its_parser(page: Page, pytestconfig: pytest.Config) -> None:
    refused = []
    for command in page.commands():
        try:
            forms(command, pytestconfig)
        except RefusedError as error:
            refused.append(f"{command}: {error}")
    assert refused == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_a_sentence_names_is_there(page: Page) -> None:
    refused = []
    for code in page.code():
        try:
            check_mentioned(code.text)
        except RefusedError as error:
            refused.append(f"{code}: {error}")
    assert refused == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_line_is_run_by_a_test(page: Page, pytestconfig: pytest.Config) -> None:
    left = [command for command in page.commands() if not is_run(command)]
    assert [str(command) for command in left if set(forms(command, pytestconfig)) - HELD.keys()] == []


def test_every_test_that_is_named_here_is_there_and_every_line_too(pytestconfig: pytest.Config) -> None:
    for test in {*RUN.values(), *HELD.values()}:
        path, name = test.split("::")
        text = (ROOT / path).read_text()
        assert re.search(rf"^(async )?def {name}", text, re.MULTILINE) if path.endswith(".py") else name in text, test
    commands = [command for page in PAGES for command in page.commands()]
    seen = {each for command in commands if not is_run(command) for each in forms(command, pytestconfig)}
    assert HELD.keys() - seen == set(), "no page has such a line any more"
    places = {place for command in commands for place in (command.page, f"{command.page}#{command.section}")}
    assert RUN.keys() - places == set()


def test_every_variable_that_a_line_sets_is_read_by_something() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py") if path.parent.name != "pages")
    for page in PAGES:
        for command in page.commands():
            for words in simple_commands(command.text):
                assert [name for name in assignments(words) if name not in sources] == [], str(command)


def test_the_number_of_faults_is_the_catalogs() -> None:
    told = {
        name: re.findall(r"\b(\d+) ways", (ROOT / name).read_text()) for name in ("README.md", "kjbod/faults/README.md")
    }
    assert told == {name: [str(len(FAULTS))] for name in told}


@pytest.mark.parametrize(
    "line",
    [
        "kjbod stats -c server.properties",
        "kjbod status -c server.properties --verbose",
        "kjbod metadata dump -s /var/lib/kafka/metadata | kjbod nothing",
        "sudo kjbod format -t $(kjbod random-id) -c server.properties",
        "kjbod faults inject hang",
        "kjbod strays -c server.properties remove NAME",
        "./scripts/demo --controler kafka",
        "sudo scripts/bench/detection --file-system ext4",
        "scripts/test tests/nowhere",
        "scripts/check spelling",
        "scripts/setup --everything",
        "scripts/nothing",
    ],
)
def test_a_mistake_in_a_line_is_found(line: str, pytestconfig: pytest.Config) -> None:
    with pytest.raises(RefusedError):
        forms(Command("page", 1, line), pytestconfig)


@pytest.mark.parametrize(
    "text", ["kjbod stats", "kjbod features describe | upgrad", "kjbod move --lists", "./scripts/demo --kep"]
)
def test_a_mistake_in_a_sentence_is_found(text: str) -> None:
    with pytest.raises(RefusedError):
        check_mentioned(text)


def test_what_is_of_others_is_left_to_them(pytestconfig: pytest.Config) -> None:
    assert not is_ours(["kafka-topics.sh", "--describe"])
    assert forms(Command("page", 1, "sudo umount -l /mnt/d3   # the dead one"), pytestconfig) == ["umount -l"]
