"""Kafka's own command line tools on a fresh cluster, one after another: what they say, made comparable.

:func:`run_tools` takes a cluster of three brokers with three log directories each through a fixed story. What must
differ between two runs (ids, ports, paths, times, sizes) is replaced by names, so that two controllers under the same
story have the same transcript: :func:`compare`.
"""

import dataclasses
import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.brokers.cluster import RealCluster
from scripts.brokers.differences import ALLOWED, Allowed

_TOOLS: Final = {
    "acls": "org.apache.kafka.tools.AclCommand",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "metadata-shell": "org.apache.kafka.shell.MetadataShell",
    "producer-perf": "org.apache.kafka.tools.ProducerPerformance",
    "reassign": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "storage": "kafka.tools.StorageTool",
    "streams-groups": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}
_NO_BOOTSTRAP: Final = {"dump-log", "metadata-shell", "storage"}
_TIMEOUT_S: Final = 240.0
_NOISE: Final = re.compile(
    r"\s+at \S+\(|\s+\.\.\. \d+ more|\[?20\d\d-\d\d-\d\d[ T][\d:,]+\]? (INFO|WARN) |"
    r".*TimeoutException: Timed out waiting to send the call|"  # when a client closes early
    r"\t[a-z0-9.]+ =|\s*\(org\.apache\.kafka[\w.]+\)$|\s*$"
)
"""What a logger says: its lines, and the values of a configuration that follow one."""


@dataclass(frozen=True, slots=True)
class Step:
    """A call of a tool.

    Attributes:
        line: tool and arguments; ``{work}``, ``{1.2}`` (a log directory) and the like are filled in.
        at: ``brokers`` or ``controller``: which bootstrap option it gets.
        mask: what further differs from run to run: each match becomes ``*``.
        times: how often it is repeated at most until its output contains :attr:`until`.
        until: for what takes its time.
    """

    line: str
    at: str = "brokers"
    mask: str = ""
    until: str = ""

    @property
    def name(self) -> str:
        return self.line if self.at == "brokers" else f"{self.line} (--bootstrap-controller)"


def _both(line: str, mask: str = "") -> tuple[Step, Step]:
    return Step(line, mask=mask), Step(line, "controller", mask)


_NUMBERS: Final = r"\d[\d.,]*"

STEPS: Final[tuple[Step, ...]] = (
    # what there is
    Step("topics --list"),
    *_both("cluster cluster-id"),
    *_both("cluster list-endpoints"),
    Step("cluster list-endpoints --include-fenced-brokers"),
    *_both("features describe", r"Epoch: \d+"),
    *_both("metadata-quorum describe --status", r"\"id\": [123],|(LeaderEpoch|HighWatermark|MaxFollowerLag\w*):\s*\d+"),
    *_both("metadata-quorum describe --replication", r"(?<=\t)\d+\s*\t\d+(?=\s)"),
    Step("broker-api-versions", mask=r"id: \d+ rack: null isFenced: \w+"),
    # topics
    Step("topics --create --topic alpha --replica-assignment 1:2:3,2:3:1,3:1:2"),
    Step(
        "topics --create --topic beta --replica-assignment 1:2,2:3 --config min.insync.replicas=2 "
        "--config retention.ms=3600000",
    ),
    Step("topics --create --topic auto --partitions 6 --replication-factor 2"),
    Step("topics --create --topic auto --partitions 6 --replication-factor 2"),
    Step("topics --create --if-not-exists --topic auto --partitions 6 --replication-factor 2"),
    Step("topics --create --topic wide --partitions 1 --replication-factor 5"),
    Step("topics --create --topic none --partitions 0 --replication-factor 1"),
    Step("topics --create --topic bad --partitions 1 --replication-factor 1 --config retention.ms=x"),
    Step("topics --create --topic bad --partitions 1 --replication-factor 1 --config no.such=1"),
    Step("topics --create --topic bad/name --partitions 1 --replication-factor 1"),
    Step("topics --create --topic odd --replica-assignment 1:1"),
    Step("topics --create --topic odd --replica-assignment 1:2,3"),
    Step("topics --create --topic odd --replica-assignment 1:9"),
    Step("topics --create --topic alpha.1 --partitions 1 --replication-factor 1"),
    Step("topics --create --topic alpha_1 --partitions 1 --replication-factor 1"),
    Step("topics --list"),
    Step("topics --describe --topic alpha"),
    Step("topics --describe --topic beta"),
    Step("topics --describe --topic auto", mask=r"(Leader|Replicas|Isr|Elr|LastKnownElr): [\d,]+"),
    Step("topics --describe --topics-with-overrides"),
    Step("topics --describe --under-replicated-partitions"),
    Step("topics --describe --unavailable-partitions"),
    Step("topics --describe --at-min-isr-partitions --topic beta"),
    Step("topics --alter --topic alpha --partitions 4 --replica-assignment 1:2:3,2:3:1,3:1:2,1:3:2"),
    Step("topics --alter --topic auto --partitions 8"),
    Step("topics --alter --topic auto --partitions 8"),
    Step("topics --alter --topic auto --partitions 2"),
    Step("topics --alter --topic none --partitions 2"),
    Step("topics --alter --topic beta --partitions 3 --replica-assignment 1:2,2:3,3:9"),
    Step("topics --describe --topic alpha"),
    # configurations
    Step(
        "configs --alter --entity-type topics --entity-name alpha --add-config "
        "cleanup.policy=compact,segment.bytes=1048576",
    ),
    Step("configs --alter --entity-type topics --entity-name alpha --delete-config cleanup.policy"),
    Step("configs --alter --entity-type topics --entity-name alpha --delete-config no.such"),
    Step("configs --alter --entity-type topics --entity-name alpha --add-config retention.ms=-7"),
    Step("configs --alter --entity-type topics --entity-name none --add-config retention.ms=7"),
    Step("configs --describe --entity-type topics --entity-name alpha"),
    Step("configs --describe --entity-type topics"),
    Step("configs --describe --all --entity-type topics --entity-name beta"),
    Step("configs --alter --entity-type brokers --entity-name 1 --add-config log.cleaner.threads=1"),
    Step("configs --alter --entity-type brokers --entity-default --add-config log.retention.ms=86400000"),
    Step("configs --alter --entity-type brokers --entity-name 1 --add-config log.dirs=/nowhere"),
    Step("configs --alter --entity-type brokers --entity-default --add-config min.insync.replicas=2"),
    Step("configs --alter --entity-type brokers --entity-name 1 --add-config min.insync.replicas=2"),
    Step("configs --alter --entity-type brokers --entity-default --delete-config min.insync.replicas"),
    Step("configs --describe --entity-type brokers"),
    Step("configs --describe --entity-type brokers --entity-name 1"),
    Step("configs --describe --entity-type brokers", "controller"),
    Step("configs --describe --entity-type brokers --entity-name 3000", "controller"),
    Step("configs --describe --all --entity-type brokers --entity-name 3000", "controller"),
    Step("configs --alter --entity-type brokers --entity-name 3000 --add-config max.connections=77", "controller"),
    Step("configs --describe --entity-type brokers --entity-name 3000", "controller"),
    Step("configs --describe --entity-type topics --entity-name beta", "controller"),
    Step(
        "configs --alter --entity-type users --entity-name ann --add-config "
        "SCRAM-SHA-256=[iterations=4096,password=secret]",
    ),
    Step(
        "configs --alter --entity-type users --entity-name ann --add-config "
        "producer_byte_rate=1024,request_percentage=50",
    ),
    Step(
        "configs --alter --entity-type users --entity-name ann --entity-type clients --entity-name app "
        "--add-config consumer_byte_rate=2048",
    ),
    Step("configs --alter --entity-type clients --entity-default --add-config producer_byte_rate=4096000"),
    Step("configs --alter --entity-type ips --entity-name 127.0.0.9 --add-config connection_creation_rate=50"),
    Step("configs --alter --entity-type users --entity-name ann --add-config no_such_rate=1"),
    Step("configs --describe --entity-type users"),
    Step("configs --describe --entity-type users --entity-name ann"),
    Step("configs --describe --entity-type clients"),
    Step("configs --describe --entity-type ips"),
    Step("configs --alter --entity-type users --entity-name ann --delete-config SCRAM-SHA-256,producer_byte_rate"),
    Step("configs --alter --entity-type users --entity-name ann --delete-config SCRAM-SHA-512"),
    Step("configs --alter --entity-type clients --entity-default --delete-config producer_byte_rate"),
    Step("configs --describe --entity-type users"),
    Step("configs --alter --entity-type groups --entity-name g --add-config consumer.session.timeout.ms=50000"),
    Step("configs --describe --entity-type groups"),
    Step("client-metrics --alter --name m --metrics org.apache.kafka.producer. --interval 10000 --match client_id=x"),
    Step("client-metrics --list"),
    Step("client-metrics --describe --name m"),
    Step("client-metrics --delete --name m"),
    # who may do what
    Step("acls --add --allow-principal User:ann --operation Read --operation Write --topic alpha"),
    Step(
        "acls --add --deny-principal User:bob --deny-host 10.0.0.1 --operation All --topic al "
        "--resource-pattern-type prefixed",
    ),
    Step("acls --add --allow-principal User:ann --consumer --topic beta --group g"),
    *_both("acls --list"),
    Step("acls --list --topic alpha --resource-pattern-type match"),
    Step("acls --remove --force --allow-principal User:ann --operation Read --topic alpha"),
    Step("acls --remove --force --topic al --resource-pattern-type prefixed"),
    Step("acls --list"),
    Step("delegation-tokens --describe --command-config {work}/client.properties"),
    Step("delegation-tokens --create --max-life-time-period -1 --command-config {work}/client.properties"),
    # features
    Step("features upgrade --feature share.version=1"),
    Step("features downgrade --feature group.version=0"),
    Step("features upgrade --feature group.version=1"),
    Step("features upgrade --feature group.version=7"),
    Step("features upgrade --feature no.such=1"),
    Step("features downgrade --metadata 3.7-IV4 --dry-run"),
    Step("features downgrade --metadata 3.7-IV4"),
    Step("features downgrade --metadata 3.2-IV0"),
    Step("features upgrade --metadata 4.3-IV0 --dry-run"),
    Step("features upgrade --release-version 4.3 --dry-run"),
    Step("features disable --feature streams.version --dry-run"),
    *_both("features describe", r"Epoch: \d+"),
    # the quorum
    Step("metadata-quorum add-controller --dry-run", "controller"),
    Step("metadata-quorum remove-controller --controller-id 3000 --controller-directory-id AAAAAAAAAAAAAAAAAAAAAQ"),
    Step("metadata-quorum remove-controller --controller-id 3001 --controller-directory-id AAAAAAAAAAAAAAAAAAAAAQ"),
    # data
    Step("producer-perf --topic alpha --num-records 3000 --record-size 1000 --throughput -1", mask=_NUMBERS),
    Step(
        "producer-perf --topic beta --num-records 300 --record-size 100 --throughput -1 "
        "--transactional-id perf --transaction-duration-ms 200",
        mask=_NUMBERS,
    ),
    Step(
        "verifiable-producer --topic beta --max-messages 50 --acks -1",
        mask=rf"{_NUMBERS}|\"(partition|offset|timestamp|avg_throughput|target_throughput)\":[-\d.E]+",
    ),
    Step(
        "verifiable-consumer --topic beta --group-id readers --max-messages 350",
        mask=r".*(offsets_committed|records_consumed|partitions_).*|\d{13}",
    ),
    Step("get-offsets --topic beta", mask=r":\d+$"),
    Step("get-offsets --topic alpha --time earliest"),
    Step("consumer-groups --list"),
    Step("consumer-groups --list --state"),
    Step("consumer-groups --describe --group readers", mask=r"\b\d+\b"),
    Step("consumer-groups --describe --group readers --state", mask=r"127.0.0.1:\S+\s+\(\d\)|BROKER\d\s+\(\d\)"),
    Step("consumer-groups --describe --group none"),
    Step("groups --list"),
    Step("configs --alter --entity-type groups --entity-name shared --add-config share.auto.offset.reset=earliest"),
    Step("console-share-consumer --topic beta --group shared --max-messages 50", mask=r"^(?!Processed).+$"),
    Step("share-groups --list"),
    Step("share-groups --describe --group shared", mask=r"\d+"),
    Step("share-groups --delete --group shared"),
    Step("streams-groups --list"),
    Step("transactions list", mask=r"(?<=perf)\s+\d\s+\d+"),
    Step("transactions describe --transactional-id perf", mask=r"\d+|\S+-\d(,\S+-\d)*"),
    Step("transactions find-hanging --broker-id 1"),
    Step("delete-records --offset-json-file {work}/delete-records.json"),
    Step("get-offsets --topic alpha --time earliest"),
    Step("consumer-groups --delete --group readers"),
    # moves
    Step("topics --create --topic gamma --replica-assignment 1,1"),
    Step("producer-perf --topic gamma --num-records 3000 --record-size 1000 --throughput -1", mask=_NUMBERS),
    Step("reassign --list"),
    Step(
        "reassign --generate --topics-to-move-json-file {work}/topics-to-move.json --broker-list 1,2,3",
        mask=r"\{.*\}",
    ),
    Step("reassign --execute --reassignment-json-file {work}/throttled.json --throttle 2000", mask=r"\{.*\}"),
    Step("reassign --list"),
    Step("topics --describe --topic gamma"),
    Step("topics --describe --under-replicated-partitions"),
    Step("configs --describe --entity-type topics --entity-name gamma"),
    Step("configs --describe --entity-type brokers --entity-name 2"),
    Step("topics --alter --topic gamma --partitions 3"),
    Step("reassign --cancel --reassignment-json-file {work}/throttled.json --preserve-throttles", mask=r"\{.*\}"),
    Step("reassign --list"),
    Step("reassign --verify --reassignment-json-file {work}/throttled.json"),
    Step("reassign --execute --reassignment-json-file {work}/across.json", mask=r"\{.*\}"),
    Step("reassign --verify --reassignment-json-file {work}/across.json", until="Clearing topic-level throttles"),
    Step(
        "reassign --execute --reassignment-json-file {work}/directories.json "
        "--replica-alter-log-dirs-throttle 100000000",
        mask=r"\{.*\}",
    ),
    Step("reassign --verify --reassignment-json-file {work}/directories.json", until="Clearing topic-level throttles"),
    Step("reassign --execute --reassignment-json-file {work}/unknown.json", mask=r"\{.*\}"),
    Step("topics --describe --topic alpha"),
    Step("log-dirs --describe --topic-list alpha"),
    Step("leader-election --election-type preferred --all-topic-partitions"),
    Step("leader-election --election-type preferred --topic alpha --partition 0"),
    Step("leader-election --election-type unclean --topic alpha --partition 1"),
    Step("leader-election --election-type preferred --topic none --partition 0"),
    Step("topics --describe --topic alpha"),
    # the end of things
    Step("topics --delete --topic beta"),
    Step("topics --delete --topic beta"),
    Step("topics --list"),
    Step("topics --create --topic beta --replica-assignment 3:2"),
    Step("topics --describe --topic beta"),
    Step("cluster unregister --id 9"),
)  # fmt: skip
"""What is done on the running cluster."""

STOPPED_STEPS: Final[tuple[Step, ...]] = (
    Step("topics --describe --topic alpha"),
    Step("topics --describe --under-replicated-partitions --topic alpha"),
    Step("cluster list-endpoints --include-fenced-brokers"),
    Step("topics --create --topic less --partitions 1 --replication-factor 3"),
    Step("cluster unregister --id 3"),
    Step("cluster unregister --id 3"),
    Step("cluster list-endpoints --include-fenced-brokers"),
    Step("topics --describe --topic alpha"),
)
"""What is done after broker 3 was stopped."""

OFFLINE_STEPS: Final[tuple[Step, ...]] = (
    Step("storage info -c {work}/controller.properties"),
    Step("dump-log --cluster-metadata-decoder --files {log}"),
    Step("dump-log --cluster-metadata-decoder --files {snapshot}"),
    Step("metadata-shell --snapshot {snapshot} ls /image"),
    Step("metadata-shell --snapshot {snapshot} tree /image/features", until="transaction.version"),
    Step("metadata-shell --snapshot {snapshot} ls /image/topics/byName", until="auto"),
    Step("metadata-shell --snapshot {log} ls /image"),
    Step("metadata-shell --snapshot {log} tree /image/features", until="transaction.version"),
    # The shell may come too early to its own loading.
    Step("metadata-shell --snapshot {log} tree /image/acls", until="StandardAcl"),
    Step("metadata-shell --snapshot {log} tree /image/scram", mask=r"(?<==)[0-9a-f]{20,}", until="ScramCredential"),
    Step("metadata-shell --snapshot {log} ls /image/topics/byName", until="beta"),
    Step("metadata-shell --snapshot {log} tree /image/configs", until="BROKER:3000"),
    Step("metadata-shell --snapshot {log} tree /image/clientQuotas", until="ip("),
    Step(
        "metadata-shell --snapshot {log} tree /image/cluster",
        mask=r"(?<=epoch=)\d+|supportedFeatures=\{[^}]*\}",
        until="ControllerRegistration",
    ),
)
"""What is done with the metadata log once the controller has stopped."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a step."""

    name: str
    code: int
    lines: tuple[str, ...]

    def text(self) -> list[str]:
        return [f"exit code {self.code}", *self.lines]


class Transcript:
    """Runs steps and keeps what they came to."""

    def __init__(self, cluster: RealCluster) -> None:
        self.outcomes: list[Outcome] = []
        self.raw: list[tuple[Step, int, str]] = []
        self._cluster = cluster
        self._names = names_of(cluster)

    def run(self, steps: Iterable[Step]) -> None:
        for step in steps:
            outcome = self._run(step)
            for _ in range(60):
                if not step.until or any(step.until in line for line in outcome.lines):
                    break
                outcome = self._run(step)
            self.outcomes.append(outcome)

    def _run(self, step: Step) -> Outcome:
        cluster = self._cluster
        places = {"{work}": str(cluster.base)}
        log = cluster.controller_dir / "__cluster_metadata-0"
        if logs := sorted(log.glob("*.log")):
            places["{log}"] = str(logs[-1])
        if snapshots := sorted(log.glob("*.checkpoint")):
            places["{snapshot}"] = str(snapshots[-1])
        line = step.line
        for name, value in places.items():
            line = line.replace(name, value)
        tool, *arguments = line.split()
        if tool not in _NO_BOOTSTRAP:
            bootstrap = (
                ["--bootstrap-controller", f"127.0.0.1:{cluster.port}"]
                if step.at == "controller"
                else ["--bootstrap-server", cluster.bootstrap]
            )
            first = tool in ("features", "metadata-quorum", "transactions")
            arguments = [*bootstrap, *arguments] if first else [*arguments, *bootstrap]
        done = cluster.kit.run(_TOOLS[tool], *arguments, timeout_s=_TIMEOUT_S, check=False)
        self.raw.append((step, done.returncode, f"{done.stdout}\n{done.stderr}"))
        return normal(step, done.returncode, f"{done.stdout}\n{done.stderr}", self._names)


def names_of(cluster: RealCluster) -> dict[str, str]:
    """Names for the cluster's paths and ports in a transcript, the longest first."""
    names = {str(path): f"DIR-{broker}-{number}" for (broker, number), path in cluster.log_dirs.items()}
    names[str(cluster.base)] = "WORK"
    names |= {f"127.0.0.1:{port}": f"BROKER{broker}" for broker, port in cluster.ports.items()}
    names |= {str(port): f"PORT{broker}" for broker, port in cluster.ports.items()}
    names |= {f"127.0.0.1:{cluster.port}": "CONTROLLER", str(cluster.port): "CPORT"}
    return dict(sorted(names.items(), key=lambda item: -len(item[0])))


def normal(step: Step, code: int, said: str, names: Mapping[str, str]) -> Outcome:
    """Outcome of a step, without what its logger says and with what must differ masked.

    No order is promised anywhere, so that lines are sorted; frames of a stack say nothing about the controller.
    """
    lines = set()
    for raw in said.splitlines():
        if raw.startswith('{"brokers":'):
            lines.update(_log_dirs(raw, names))
        elif not _NOISE.match(raw):
            lines.add(_normal(raw, step.mask, names))
    return Outcome(step.name, code, tuple(sorted(lines - {""})))


def _normal(line: str, mask: str, names: Mapping[str, str]) -> str:
    for place, name in names.items():
        line = line.replace(place, name)
    if mask:
        line = re.sub(mask, "*", line)
    line = re.sub(r"(?<![\w-])[\w-]{22}(?![\w-])", _id, line)
    line = re.sub(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "ID", line)
    line = re.sub(r"\b1[78]\d{11}\b", "TIME", line)
    line = re.sub(r"^\[?20\d\d-\d\d-\d\d[ T][\d:,]+\]?", "TIME", line)
    line = re.sub(r"(?<=for partitions )[\w.,\s-]+$", lambda found: ", ".join(sorted(found[0].split(", "))), line)
    return re.sub(r"\s+", " ", line).strip()


def _log_dirs(line: str, names: Mapping[str, str]) -> list[str]:
    """A line for each directory and each replica in kafka-log-dirs' JSON; where it lies is the brokers' choice."""
    lines = []
    for broker in json.loads(line)["brokers"]:
        for log_dir in broker["logDirs"]:
            lines.append(f"broker {broker['broker']} {names[log_dir['logDir']]} error {log_dir['error']}")
            lines += [
                f"broker {broker['broker']} {part['partition']} lag {part['offsetLag']} future {part['isFuture']}"
                for part in log_dir["partitions"]
            ]
    return lines


def _id(match: re.Match[str]) -> str:
    text = match.group()
    if not re.search(r"[A-Z0-9]", text) or re.fullmatch(r"([A-Z][a-z]+)+|[A-Z_]+|A{21}.", text):
        return text
    return "ID"


def write_plans(cluster: RealCluster) -> None:
    """The JSON files that steps name."""

    def partition(number: int, replicas: Sequence[int], dirs: Sequence[str] = (), topic: str = "alpha") -> object:
        return {"topic": topic, "partition": number, "replicas": replicas, "log_dirs": dirs or ["any"] * len(replicas)}

    def plan(*partitions: object) -> object:
        return {"version": 1, "partitions": partitions}

    first = str(cluster.log_dirs[1, 1]), str(cluster.log_dirs[2, 2])
    files = {
        "delete-records": plan({"topic": "alpha", "partition": 0, "offset": 5}),
        "topics-to-move": {"version": 1, "topics": [{"topic": "alpha"}]},
        "throttled": plan(partition(0, (2, 3), topic="gamma"), partition(1, (3,), topic="gamma")),
        "across": plan(partition(0, (3, 2)), partition(1, (1, 3)), partition(2, (2, 1)), partition(3, (2, 1, 3))),
        "directories": plan(partition(3, (2, 1), (first[1], first[0]))),
        "unknown": plan(partition(0, (1, 9)), partition(77, (1, 2)), partition(0, (1,), topic="none")),
    }
    (cluster.base / "client.properties").touch()
    for name, content in files.items():
        (cluster.base / f"{name}.json").write_text(json.dumps(content))


def run_tools(cluster: RealCluster) -> list[Outcome]:
    """The whole story, on a cluster that has been started; it is stopped at the end."""
    write_plans(cluster)
    transcript = Transcript(cluster)
    transcript.run(STEPS)
    cluster.stop_broker(3)
    transcript.run(STOPPED_STEPS)
    cluster.stop()
    transcript.run(OFFLINE_STEPS)
    return [_summary(outcome) if outcome.name.startswith("dump-log") else outcome for outcome in transcript.outcomes]


def _summary(dump: Outcome) -> Outcome:
    """Kinds of records that a dump has: how many there are depends on how long it took."""
    kinds = {match.group(1) for line in dump.lines if (match := re.search(r'"type":"(\w+)","version":\d+', line))}
    strange = [line for line in dump.lines if not line.startswith(("| offset:", "baseOffset:"))]
    return dataclasses.replace(dump, lines=(*sorted(kinds), *strange))


@dataclass(frozen=True, slots=True)
class Difference:
    """A step whose outcomes differ; ``reason``: that of the table, if each differing line is in it."""

    name: str
    lines: tuple[str, ...]
    reason: str | None


def compare(
    ours: Sequence[Outcome], theirs: Sequence[Outcome], allowed: Sequence[Allowed] = ALLOWED
) -> list[Difference]:
    """Step by step; lines with ``-`` are Kafka's controller's, with ``+`` kjbod's."""
    differences = []
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.name == other.name
        changed = [
            line
            for line in difflib.unified_diff(other.text(), mine.text(), lineterm="", n=0)
            if not line.startswith(("---", "+++", "@@"))
        ]
        if changed:
            differences.append(Difference(mine.name, tuple(changed), _reason(mine.name, changed, allowed)))
    return differences


def _reason(name: str, changed: Sequence[str], allowed: Sequence[Allowed]) -> str | None:
    fitting = [entry for entry in allowed if re.match(entry.step, name)]
    reasons = []
    for line in changed:
        found = next((entry for entry in fitting if re.search(entry.line, line[1:])), None)
        if found is None:
            return None
        reasons.append(found.reason)
    return "; ".join(dict.fromkeys(reasons))


def save(outcomes: Sequence[Outcome], path: Path) -> None:
    """For a reader."""
    path.write_text("".join(f"$ {o.name}\n" + "".join(f"  {line}\n" for line in o.text()) for o in outcomes))
