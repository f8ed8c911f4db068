"""Find and hide secrets in the metadata: keys and salts of SCRAM credentials, tokens, and configuration values that are
passwords (``ConfigDef.Type.PASSWORD``). Kafka's ``MetadataNodeRedactionCriteria`` also hides all configurations of an
unknown type."""

import re
from collections.abc import Mapping
from typing import Any, Final

from kjbod.metadata.image import BROKER
from kjbod.metadata.records import ConfigRecord, Record, UserScramCredentialRecord

REDACTED: Final = "[redacted]"
_PASSWORDS: Final = re.compile(
    r"(?:.*[.])?(?:password|passphrase|secret|secret[.]key|jaas[.]config|keystore[.]key|keystore[.]certificate[.]chain"
    r"|truststore[.]certificates)",
    re.IGNORECASE,
)
_TABLE: Final = """
background.threads compression.gzip.level compression.lz4.level compression.type compression.zstd.level
config.providers cordoned.log.dirs errors.deadletterqueue.auto.create.topics.enable
errors.deadletterqueue.topic.name.prefix follower.fetch.last.tiered.offset.enable
follower.replication.throttled.rate group.consumer.assignment.interval.ms group.consumer.assignor.offload.enable
group.coordinator.cached.buffer.max.bytes group.share.assignment.interval.ms group.share.assignor.offload.enable
group.streams.assignment.interval.ms group.streams.assignor.offload.enable leader.replication.throttled.rate
listener.security.protocol.map listeners log.cleaner.backoff.ms log.cleaner.dedupe.buffer.size
log.cleaner.delete.retention.ms log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size
log.cleaner.io.max.bytes.per.second log.cleaner.max.compaction.lag.ms log.cleaner.min.cleanable.ratio
log.cleaner.min.compaction.lag.ms log.cleaner.threads log.cleanup.policy log.flush.interval.messages
log.flush.interval.ms log.index.interval.bytes log.index.size.max.bytes log.local.retention.bytes
log.local.retention.ms log.message.timestamp.after.max.ms log.message.timestamp.before.max.ms
log.message.timestamp.type log.preallocate log.remote.copy.lag.bytes log.remote.copy.lag.ms log.retention.bytes
log.retention.ms log.roll.jitter.ms log.roll.ms log.segment.bytes log.segment.delete.delay.ms
max.connection.creation.rate max.connections max.connections.per.ip max.connections.per.ip.overrides
max.decompressed.message.bytes message.max.bytes metric.reporters min.insync.replicas num.io.threads
num.network.threads num.recovery.threads.per.data.dir num.replica.fetchers principal.builder.class
producer.id.expiration.ms remote.fetch.max.wait.ms remote.list.offsets.request.timeout.ms
remote.log.index.file.cache.total.size.bytes remote.log.manager.copier.thread.pool.size
remote.log.manager.copy.max.bytes.per.second remote.log.manager.expiration.thread.pool.size
remote.log.manager.fetch.max.bytes.per.second remote.log.manager.follower.thread.pool.size
remote.log.reader.threads replica.alter.log.dirs.io.max.bytes.per.second sasl.enabled.mechanisms
sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal.to.local.rules
sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter sasl.mechanism.inter.broker.protocol share.coordinator.cached.buffer.max.bytes
ssl.cipher.suites ssl.client.auth ssl.enabled.protocols ssl.endpoint.identification.algorithm
ssl.engine.factory.class ssl.keymanager.algorithm ssl.keystore.location ssl.keystore.type ssl.protocol ssl.provider
ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.location ssl.truststore.type
transaction.partition.verification.enable unclean.leader.election.enable
"""
_OF_BROKERS: Final = frozenset(_TABLE.split())
"""Configurations of brokers that can be changed at run time (``DynamicBrokerConfig``, ``QuotaConfig``) and are no
passwords. Any other name belongs to a plug-in, and its value may be a secret."""
_OF_A_LISTENER: Final = "listener.name."
_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "USER_SCRAM_CREDENTIAL_RECORD": frozenset({"salt", "storedKey", "serverKey"}),
    "DELEGATION_TOKEN_RECORD": frozenset({"tokenId"}),
    "REMOVE_DELEGATION_TOKEN_RECORD": frozenset({"tokenId"}),
}
"""Secret fields by record type, as named in a dump."""


def is_password(config: str, resource_type: int) -> bool:
    """Return whether the value of a configuration is a secret, by its name: Kafka's password keys with any prefix, and
    every broker key that Kafka does not know."""
    if _PASSWORDS.fullmatch(config):
        return True
    return resource_type == BROKER and not _is_known(config)


def _is_known(config: str) -> bool:
    """Return whether the key is a known broker key, also with the prefix of a listener and maybe a mechanism."""
    if config in _OF_BROKERS:
        return True
    parts = config.split(".")
    return config.startswith(_OF_A_LISTENER) and any(".".join(parts[at:]) in _OF_BROKERS for at in (3, 4))


def has_secrets(record: Record) -> bool:
    """Return whether the record contains a secret with which a reader could log in as somebody else."""
    return isinstance(record, UserScramCredentialRecord) or (
        isinstance(record, ConfigRecord) and is_password(record.name, record.resource_type)
    )


def without_secrets(dumped: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record from :mod:`kjbod.metadata.dump` with its secrets hidden."""
    kind, data = dumped.get("type"), dumped.get("data")
    if not isinstance(data, Mapping):
        return dict(dumped)
    hidden = _FIELDS.get(str(kind), frozenset())
    if kind == "CONFIG_RECORD" and data.get("value") is not None:
        hidden = frozenset({"value"} if is_password(str(data.get("name")), data.get("resourceType", BROKER)) else ())
    if not hidden:
        return dict(dumped)
    return {**dumped, "data": {key: REDACTED if key in hidden else value for key, value in data.items()}}
