"""Recognize other files than the one a command reads, by their names and first bytes. Pure.

A command that gets another kind of file reports in one line what the file is, and what reads it. Unknown files are none
of these kinds.

Source: names of files in a log directory (``UnifiedLog``, ``LogFileUtils``, ``MetaPropertiesEnsemble``); magic numbers.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

DUMP_LOG: Final = "Kafka's kafka-dump-log --files reads it"
INFO: Final = "kjbod info -c server.properties reads the log directory that has it"
SERVER_FILE: Final = "expected Kafka's server.properties"
_METADATA_TOPIC: Final = "__cluster_metadata-0"
_PARTITION: Final = re.compile(r"(.+)-([0-9]{1,10})(\.[0-9a-f]{32}-(delete|future|stray))?")
_PACKED: Final[Mapping[bytes, str]] = {
    b"\x1f\x8b": "packed with gzip: unpack it first",
    b"\x28\xb5\x2f\xfd": "packed with zstd: unpack it first",
    b"BZh": "packed with bzip2: unpack it first",
    b"\xfd7zXZ\0": "packed with xz: unpack it first",
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"\x7fELF": "a program",
    b"%PDF-": "a PDF document",
    b"\xfe\xed\xfe\xed": "a keystore of Java: ssl.keystore.location or ssl.truststore.location names it",
    b"-----BEGIN ": "PEM, a certificate or a key: ssl.keystore.location or ssl.truststore.location names it",
}
_NAMES: Final[Mapping[str, str]] = {
    "meta.properties": f"the identity of a log directory: {INFO}",
    "quorum-state": f"the vote of a voter of the metadata log: {INFO}",
    "partition.metadata": "the topic id of a replica: kjbod log-dirs and kjbod metadata dump show it",
    "leader-epoch-checkpoint": "the leader epochs of a replica, which Kafka alone reads",
    "recovery-point-offset-checkpoint": "the recovery points of a log directory, which Kafka alone reads",
    "replication-offset-checkpoint": "the high watermarks of a log directory, which Kafka alone reads",
    "log-start-offset-checkpoint": "the log start offsets of a log directory, which Kafka alone reads",
    "cleaner-offset-checkpoint": "the offsets of the log cleaner, which Kafka alone reads",
    "bootstrap.checkpoint": "the first records of a cluster: kjbod metadata dump --snapshot reads it",
}
_SUFFIXES: Final[Mapping[str, str]] = {
    ".index": f"the offset index of a log segment: {DUMP_LOG}",
    ".timeindex": f"the time index of a log segment: {DUMP_LOG}",
    ".txnindex": f"the index of aborted transactions of a log segment: {DUMP_LOG}",
    ".snapshot": f"the producer state of a replica: {DUMP_LOG}",
}
_UTF16: Final = "UTF-16 text, in which Kafka finds no key: write it as UTF-8 (iconv -f UTF-16 -t UTF-8)"
_WIDE: Final[Mapping[bytes, str]] = {
    b"\xff\xfe\0\0": "UTF-32 text, in which Kafka finds no key: write it as UTF-8 (iconv -f UTF-32 -t UTF-8)",
    b"\0\0\xfe\xff": "UTF-32 text, in which Kafka finds no key: write it as UTF-8 (iconv -f UTF-32 -t UTF-8)",
    b"\xff\xfe": _UTF16,
    b"\xfe\xff": _UTF16,
}
BYTE_ORDER_MARK: Final = "\xef\xbb\xbf"
"""UTF-8's byte order mark as Java reads it: each byte a character of ISO-8859-1, and part of the first key."""
_LINES: Final = rb"(?:[ \t]*(?:(?:#|//).*)?\n)*[ \t]*"
"""Empty lines and comments before the first relevant line. Each line matches in only one way, so no search is long."""
_TEXTS: Final = (
    (re.compile(rb"\s*[{\[]\s*[\"{}\]]"), "JSON"),
    (re.compile(rb"\s*<(\?xml|!DOCTYPE|[A-Za-z]+[ />])"), "XML"),
    (re.compile(rb"#![ \t]*/"), "a script"),
    (re.compile(_LINES + rb"\[(Unit|Service|Install|Socket)\]"), "a unit of systemd"),
    (re.compile(_LINES + rb"(---[ \t\r]*\n|apiVersion:|kind:|version:|services:)"), "YAML"),
    (
        re.compile(_LINES + rb"[A-Za-z0-9_.]+\s*\{[^}]*LoginModule"),
        "a JAAS file: kjbod.jaas.file names it",
    ),
)
_PROPERTIES: Final[tuple[tuple[frozenset[str], str], ...]] = (
    (frozenset({"cluster.id", "version"}), f"the meta.properties of a log directory: {INFO}; {SERVER_FILE}"),
    (
        frozenset({"zookeeper.connect"}),
        "zookeeper.connect: expected the file of a broker in KRaft mode (process.roles), not in ZooKeeper mode",
    ),
    (frozenset({"dataDir", "clientPort"}), f"the configuration of a ZooKeeper server: {SERVER_FILE}"),
    (frozenset({"key.converter", "value.converter"}), f"the configuration of a Kafka Connect worker: {SERVER_FILE}"),
    (frozenset({"connector.class"}), f"the configuration of a connector of Kafka Connect: {SERVER_FILE}"),
    (frozenset({"log4j.rootLogger"}), f"the configuration of log4j: {SERVER_FILE}"),
    (frozenset({"rootLogger.level"}), f"the configuration of log4j: {SERVER_FILE}"),
    (
        frozenset({"bootstrap.servers"}),
        f"the configuration of a client (bootstrap.servers): {SERVER_FILE}; --command-config takes a client's",
    ),
    (
        frozenset({"sasl.jaas.config", "security.protocol"}),
        f"the configuration of a client (security.protocol): {SERVER_FILE}; --command-config takes a client's",
    ),
)


def kind_by_name(path: str) -> str | None:
    """Return the kind of a file of a log directory by its path; None: the name does not identify a kind."""
    name = path.rpartition("/")[2]
    return _NAMES.get(name) or next((kind for suffix, kind in _SUFFIXES.items() if name.endswith(suffix)), None)


def replica_of(path: str) -> str | None:
    """Return the topic partition of a segment by its path; None: a segment of the metadata log, or unknown."""
    folder = path.rpartition("/")[0].rpartition("/")[2]
    found = _PARTITION.fullmatch(folder)
    return None if found is None or folder == _METADATA_TOPIC else f"{found[1]}-{found[2]}"


def kind_by_content(head: bytes) -> str | None:
    """Return the kind of a file whose start is not properties text; None: unknown."""
    for magic, kind in (*_WIDE.items(), *_PACKED.items()):
        if head.startswith(magic):
            return kind
    if _is_utf16_without_mark(head):
        return _UTF16
    if head[257:262] == b"ustar":
        return "a tar archive: unpack it first"
    if head and not any(head):
        return "nothing but NUL bytes, as a loss of power leaves a file: restore it from a copy"
    if len(head) > 16 and head[:4] == b"\0" * 4 and head[16] in (0, 1, 2):  # the offset, and the magic
        return f"a log segment of Kafka: {DUMP_LOG}"
    return next((kind for pattern, kind in _TEXTS if pattern.match(head)), None)


def _is_utf16_without_mark(head: bytes) -> bool:
    """Return whether every other byte at the start of a text is NUL, as Windows' editors may write it."""
    text = head[:64]
    return len(text) >= 8 and any(not any(text[at::2]) and all(text[1 - at :: 2]) for at in (0, 1))


def kind_of_properties(properties: Mapping[str, str]) -> str | None:
    """Return the kind of a properties file without ``process.roles``; None: it may be a server's."""
    if "process.roles" in properties:
        return None
    return next((kind for keys, kind in _PROPERTIES if keys <= properties.keys()), None)


def misspelled(given: Iterable[str], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the unknown keys of a file, each with the known key from which it differs only in case, in separators, or
    by a leading byte order mark."""
    plain = {_plain(name): name for name in known}
    for key in given:
        meant = plain.get(_plain(key))
        if meant is not None and key not in known:
            yield key, meant


def has_mark(key: str) -> bool:
    """Return whether a key begins with a byte order mark."""
    return key.startswith(BYTE_ORDER_MARK)


def _plain(name: str) -> str:
    return re.sub(r"[^0-9a-z]", "", name.removeprefix(BYTE_ORDER_MARK).lower())
