"""A file of another kind than a command reads: one line that says what it is, and what reads it."""

import gzip
import io
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest

from kjbod.config.load import load_guard_config, parse_config
from kjbod.errors import ConfigError, StorageError
from kjbod.file_kinds import kind_by_content
from kjbod.metadata.batches import encode_batch
from kjbod.metadata.reading import dump_source, load
from kjbod.metadata.records import NoOpRecord, encode_record
from kjbod.security.reading import of_client
from kjbod.wire.crc32c import crc32c

BROKER = """node.id=1
process.roles=broker
controller.quorum.voters=3@h:9093
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://h:9092
log.dirs=/mnt/d1
"""


def problems(text: bytes) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="f", working_directory="/", host="h")
    return list(caught.value.problems)


def tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("server.properties"))
    return out.getvalue()


def zipped() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("server.properties", BROKER)
    return out.getvalue()


NO_SERVER_FILES: list[tuple[str, bytes, str]] = [
    ("utf-16", BROKER.encode("utf-16"), "UTF-16 text, in which Kafka finds no key"),
    ("utf-16-be", b"\xfe\xff" + BROKER.encode("utf-16-be"), "UTF-16 text"),
    ("utf-16-le-unmarked", BROKER.encode("utf-16-le"), "UTF-16 text"),
    ("utf-16-be-unmarked", BROKER.encode("utf-16-be"), "UTF-16 text"),
    ("utf-32", BROKER.encode("utf-32"), "UTF-32 text"),
    ("zookeeper-broker", b"broker.id=1\nzookeeper.connect=z:2181\n", "not in ZooKeeper mode"),
    ("zookeeper", b"tickTime=2000\ndataDir=/zk\nclientPort=2181\n", "the configuration of a ZooKeeper server"),
    ("meta", b"#\nversion=1\ncluster.id=x\nnode.id=1\n", "the meta.properties of a log directory: kjbod info"),
    ("meta-0", b"version=0\ncluster.id=x\nbroker.id=1\n", "the meta.properties of a log directory"),
    ("client", b"bootstrap.servers=h:9092\ngroup.id=g\n", "the configuration of a client"),
    ("login", b"security.protocol=SASL_SSL\nsasl.jaas.config=x\n", "--command-config takes a client's"),
    ("connect", b"bootstrap.servers=h:1\nkey.converter=a\nvalue.converter=b\n", "a Kafka Connect worker"),
    ("connector", b"name=x\nconnector.class=y\n", "a connector of Kafka Connect"),
    ("log4j", b"log4j.rootLogger=INFO\n", "the configuration of log4j"),
    ("jaas", b"// of brokers\nKafkaServer {\n  org.x.PlainLoginModule required;\n};\n", "a JAAS file"),
    ("json", b'{"process.roles": "broker"}', "JSON"),
    ("yaml", b"apiVersion: kafka.strimzi.io/v1beta2\nkind: Kafka\n", "YAML"),
    ("compose", b"# stack\nservices:\n  kafka:\n    image: x\n", "YAML"),
    ("xml", b"<?xml version='1.0'?>\n<Configuration/>\n", "XML"),
    ("unit", b"# of ours\n[Unit]\nDescription=x\n", "a unit of systemd"),
    ("script", b"#!/bin/sh\nexec kafka-server-start.sh\n", "a script"),
    ("gzip", gzip.compress(BROKER.encode(), mtime=0), "packed with gzip: unpack it first"),
    ("zip", zipped(), "a zip archive: unpack it first"),
    ("tar", tar(), "a tar archive: unpack it first"),
    ("pem", b"-----BEGIN CERTIFICATE-----\nMII\n", "PEM, a certificate or a key"),
    ("jks", b"\xfe\xed\xfe\xed\0\0\0\2", "a keystore of Java"),
    ("nul", b"\0" * 300, "nothing but NUL bytes"),
    ("segment", encode_batch([encode_record(NoOpRecord())], 0, 1, 5), "a log segment of Kafka"),
]


@pytest.mark.parametrize(
    ("content", "words"), [one[1:] for one in NO_SERVER_FILES], ids=[o[0] for o in NO_SERVER_FILES]
)
def test_a_file_that_is_no_server_properties_is_told_in_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    (line,) = problems(content)
    assert line.startswith("f: ") and words in line
    path = tmp_path / "f"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_guard_config(path, None)
    assert len(caught.value.problems) == 1 and words in caught.value.problems[0]


@pytest.mark.parametrize("line", ["\n", " \n", "#\n", "# \r\n", "\t#//\n", "//\n", " ", "a", "a {", "{ ", "[", "<"])
def test_no_content_takes_long_to_look_at(line: str) -> None:
    for end in ("", "x", "[", "{"):
        assert kind_by_content((line * 20_000 + end).encode()) in (None, "JSON")
        assert kind_by_content((line * 999 + "[Unit]\n").encode()) in (None, "a unit of systemd", "JSON")


@pytest.mark.parametrize(
    "more",
    [
        "zookeeper.connect=z:2181\n",
        "bootstrap.servers=h:1\n",
        "version=1\ncluster.id=x\n",
        "dataDir=/zk\nclientPort=2181\n",
        "log4j.rootLogger=INFO\n",
        "advertised.Listeners=PLAINTEXT://h:9092\n",
    ],
)
def test_a_file_with_which_kafka_runs_is_taken_whatever_else_it_has(more: str) -> None:
    for text in (BROKER + more, more + BROKER, f"#!/bin/sh\n[Unit]\n{more}{BROKER}"):
        assert parse_config(text.encode(), source="f", working_directory="/", host="h").node_id == 1


def test_a_byte_order_mark_before_a_comment_is_no_matter_to_kafka() -> None:
    text = b"\xef\xbb\xbf# made on Windows\n" + BROKER.encode()
    assert parse_config(text, source="f", working_directory="/", host="h").node_id == 1


@pytest.mark.parametrize("key", ["node.id", "process.roles", "controller.listener.names"])
def test_a_byte_order_mark_before_a_key_is_told(key: str) -> None:
    lines = BROKER.splitlines(keepends=True)
    text = "".join(sorted(lines, key=lambda line: not line.startswith(key)))
    found = problems(b"\xef\xbb\xbf" + text.encode())
    assert found[0] == (
        f"f: {key} has a byte order mark (BOM) before it, which Kafka reads as a part of the key: "
        "save the file as UTF-8 without it"
    )
    assert not any(f"{key} is missing" in line for line in found)


@pytest.mark.parametrize(
    ("before", "given", "meant"),
    [
        ("node.id", "Node.Id", "node.id"),
        ("node.id", "node_id", "node.id"),
        ("node.id", "NODE.ID", "node.id"),
        ("node.id", "nodeId", "node.id"),
        ("process.roles", "process-roles", "process.roles"),
        ("process.roles", "Process.roles", "process.roles"),
        ("controller.listener.names", "controller.listener.Names", "controller.listener.names"),
    ],
)
def test_a_key_in_another_spelling_is_told_in_the_place_of_the_missing_one(before: str, given: str, meant: str) -> None:
    found = problems(BROKER.replace(before, given).encode())
    assert found[0] == f"f: {given}: unknown key; did you mean {meant}?"
    assert not any(f"{meant} is missing" in line for line in found)


def test_a_key_of_ours_in_another_spelling_is_told_once() -> None:
    (line,) = problems(f"{BROKER}kjbod.State.dir=/x\n".encode())
    assert line == "f: kjbod.State.dir=/x: unknown key; did you mean kjbod.state.dir?"


def test_a_key_in_another_spelling_is_told_beside_what_is_wrong_without_it() -> None:
    text = BROKER.replace("//h:", "//0.0.0.0:") + "advertised.Listeners=PLAINTEXT://h:9092\n"
    found = problems(text.encode())
    assert found[0] == "f: advertised.Listeners: unknown key; did you mean advertised.listeners?"
    assert "0.0.0.0" in found[1] and len(found) == 2


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL", "SASL_PLAINTEXT"])
def test_a_protocol_between_brokers_that_no_listener_has_is_named_by_its_own_key(protocol: str) -> None:
    (line,) = problems(f"{BROKER}security.inter.broker.protocol={protocol}\n".encode())
    assert line == (
        f"f: security.inter.broker.protocol={protocol}: expected a listener that is advertised (PLAINTEXT), "
        f"not {protocol}"
    )


@pytest.mark.parametrize("dirs", ["/x,/./x", "/x/.,/x", "/x,/y/../x", "/y,/x,/./x", "/x,//x/./"])
def test_a_directory_that_is_there_twice_is_one_line(dirs: str) -> None:
    (line,) = problems(BROKER.replace("/mnt/d1", dirs).encode())
    assert "expected each directory once" in line


@pytest.mark.parametrize(
    "name", ["utf-16", "utf-32", "utf-16-le-unmarked", "json", "yaml", "gzip", "pem", "jks", "xml"]
)
def test_a_client_s_file_that_is_none_is_told_and_not_read_as_plain_text(tmp_path: Path, name: str) -> None:
    content, words = next(one[1:] for one in NO_SERVER_FILES if one[0] == name)
    path = tmp_path / "client"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        of_client(path, {})
    assert str(caught.value).startswith(f"{path}: {words}")


def test_a_client_s_file_is_taken_whatever_its_comments_are(tmp_path: Path) -> None:
    path = tmp_path / "client"
    for text in ("", "# nothing\n", "#!/bin/sh\nsecurity.protocol=PLAINTEXT\n", "[Unit]\nclient.id=x\n"):
        path.write_text(text)
        assert of_client(path, {}).protocol == "PLAINTEXT"


# ------------------------------------------------------------------------------------------------------------ metadata


def batch(key: bytes | None, value: bytes | None, *, attributes: int = 0, producer: int = -1, magic: int = 2) -> bytes:
    """A batch with one record, as a producer writes it."""

    def sized(data: bytes | None) -> bytes:
        return b"\x01" if data is None else bytes([len(data) << 1]) + data

    body = b"\0\0\0" + sized(key) + sized(value) + b"\0"
    record = bytes([len(body) << 1]) + body
    rest = struct.pack(">hiqqqhii", attributes, 0, 5, 5, producer, -1 if producer < 0 else 0, -1, 1) + record
    return struct.pack(">qiibI", 0, len(rest) + 9, 0, magic, crc32c(rest)) + rest


TOPIC_BATCHES = {
    "gzip": batch(None, b"\1\1\1", attributes=1),
    "snappy": batch(None, b"\1\1\1", attributes=2),
    "lz4": batch(b"k", b"v", attributes=3),
    "zstd": batch(None, b"v", attributes=4),
    "idempotent": batch(None, b"\1\1\1", producer=7),
    "transaction": batch(b"k", b"v", attributes=0x10, producer=7),
    "marker": batch(b"\0\0\0\1", b"\0\0\0\0\0\0", attributes=0x30, producer=7),
    "create-time": batch(b"key", b"value"),
    "no-key": batch(None, b"value"),
    "tombstone": batch(b"key", None),
    "append-time": batch(None, b"value", attributes=0x08),
}


@pytest.mark.parametrize(
    "folder", ["orders-0", "a.b_c-12", "__consumer_offsets-49", "t-0.0123456789abcdef0123456789abcdef-stray"]
)
@pytest.mark.parametrize("kind", TOPIC_BATCHES)
def test_a_segment_of_a_topic_is_no_metadata_log(tmp_path: Path, kind: str, folder: str) -> None:
    path = tmp_path / folder / f"{0:020d}.log"
    path.parent.mkdir()
    path.write_bytes(TOPIC_BATCHES[kind])
    partition = folder.partition(".0")[0]
    said = f"{path} is a log segment of the topic partition {partition}, and no metadata log: Kafka's kafka-dump-log"
    for source in (path, path.parent):
        with pytest.raises(StorageError) as caught:
            list(dump_source(source))
        assert str(caught.value).startswith(said)
        with pytest.raises(StorageError, match="no metadata log"):
            load(source)


def test_a_segment_of_a_topic_that_was_copied_away_is_told_without_its_name(tmp_path: Path) -> None:
    path = tmp_path / "copy.log"
    path.write_bytes(TOPIC_BATCHES["lz4"])
    with pytest.raises(StorageError, match=r"copy\.log is a log segment of a topic, and no metadata log"):
        list(dump_source(path))


def test_a_metadata_log_is_one_wherever_it_was_copied(tmp_path: Path) -> None:
    path = tmp_path / "backup-3" / f"{0:020d}.log"
    path.parent.mkdir()
    path.write_bytes(encode_batch([encode_record(NoOpRecord())], 0, 1, 5))
    assert [record["type"] for record in dump_source(path)] == ["NO_OP_RECORD"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (f"{0:020d}.index", b"\0" * 8, "the offset index of a log segment: Kafka's kafka-dump-log"),
        (f"{0:020d}.timeindex", b"", "the time index of a log segment"),
        (f"{9:020d}.snapshot", b"", "the producer state of a replica"),
        (f"{9:020d}.txnindex", b"", "the index of aborted transactions"),
        ("meta.properties", b"version=1\n", "the identity of a log directory: kjbod info"),
        ("quorum-state", b"{}", "the vote of a voter"),
        ("partition.metadata", b"version: 0\n", "the topic id of a replica"),
        ("replication-offset-checkpoint", b"0\n", "the high watermarks of a log directory"),
        ("leader-epoch-checkpoint", b"0\n", "the leader epochs of a replica"),
        (
            "server.properties",
            BROKER.encode(),
            "a server.properties: kjbod metadata dump --config asks the controllers",
        ),
        ("log.tar", tar(), "a tar archive: unpack it first"),
        (f"{0:020d}.log.gz", gzip.compress(b"x", mtime=0), "packed with gzip: unpack it first"),
        (f"{0:020d}.log.deleted", batch(b"k", b"v"), "a log segment of Kafka"),
        ("a.zip", zipped(), "a zip archive"),
    ],
)
def test_a_file_beside_a_metadata_log_is_told_with_what_reads_it(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(StorageError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path} is {words}")
