"""DescribeConfigs (``ConfigHelper``).

A controller tells its own configuration, all of Kafka's keys, and those of topics, groups and client metrics
subscriptions. Each value comes with the places that it could have come from, the one that counts first. No value comes
with documentation: that is in Kafka's manual.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct, field

from kjbod.metadata.image import BROKER, TOPIC, MetadataImage
from kjbod.topic_names import topic_name_problem
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeConfigsResponse,
    DescribeConfigsResponseConfig,
    DescribeConfigsResponseResult,
    DescribeConfigsResponseSynonym,
)
from kjbod_controller_stub.configs.altering import (
    BROKER_LOGGER,
    CLIENT_METRICS,
    GROUP,
    Configs,
    ConfigSource,
    Resource,
    broker_key,
)
from kjbod_controller_stub.configs.node_configs import is_of_single_nodes, node_keys
from kjbod_controller_stub.configs.topic_configs import (
    CLIENT_METRICS_CONFIGS,
    GROUP_CONFIGS,
    SYNONYMS,
    TOPIC_CONFIGS,
    group_synonym,
)
from kjbod_controller_stub.configs.types import ConfigKey, ConfigType, parse_value, show_value
from kjbod_controller_stub.results import ApiError

RESOURCES_PER_REQUEST_MAX: Final = 200
"""What one request may ask about: its answer is made in one go, while heartbeats wait."""

_SYNONYMS_OF_NODES: Final[Mapping[str, tuple[str, ...]]] = {
    synonym.name: tuple(each.name for each in synonyms)
    for synonyms in SYNONYMS.values()
    for synonym in synonyms
    if len(synonyms) > 1 and "flush" not in synonym.name
}
"""Keys of nodes that say the same in other units (``DynamicBrokerConfig.brokerConfigSynonyms``)."""

_Synonyms = list[DescribeConfigsResponseSynonym]


class _Description(Struct, frozen=True):
    """Keys of a resource, and a function that describes each."""

    names: Iterable[str]
    tell: Callable[[str], DescribeConfigsResponseConfig]


class ConfigDescriber(Struct, frozen=True):
    """Answers one DescribeConfigs request from the image and this node's file."""

    configs: Configs
    _of_topics: dict[str, DescribeConfigsResponseConfig] = field(default_factory=dict)
    """What topics have in common that do not say themselves, by key."""

    @property
    def _image(self) -> MetadataImage:
        return self.configs.image

    # ---- DescribeConfigs

    def describe(self, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
        """Describe every requested resource once."""
        wanted = {(each.resource_type, each.resource_name): each for each in request.resources}
        too_many = len(wanted) > RESOURCES_PER_REQUEST_MAX
        return DescribeConfigsResponse(
            results=tuple(
                self._result(each, synonyms=request.include_synonyms, too_many=too_many) for each in wanted.values()
            )
        )

    def _result(
        self, wanted: DescribeConfigsRequestResource, *, synonyms: bool, too_many: bool
    ) -> DescribeConfigsResponseResult:
        resource = (wanted.resource_type, wanted.resource_name)
        code, message = 0, ""
        configs: tuple[DescribeConfigsResponseConfig, ...] = ()
        try:
            if too_many:
                raise ApiError(ErrorCode.POLICY_VIOLATION, f"More than {RESOURCES_PER_REQUEST_MAX} resources.")
            description = self._description(resource, synonyms=synonyms)
            keys = frozenset(wanted.configuration_keys or ())
            configs = tuple(description.tell(name) for name in description.names if not keys or name in keys)
        except ApiError as error:
            code, message = error.code, error.message
        return DescribeConfigsResponseResult(
            error_code=code,
            error_message=message,
            resource_type=resource[0],
            resource_name=resource[1],
            configs=configs,
        )

    def _description(self, resource: Resource, *, synonyms: bool) -> _Description:
        kind, name = resource
        if kind == TOPIC:
            self._require_topic(name)
            own = self._image.configs.get(resource, {})
            names = [key.name for key in TOPIC_CONFIGS.values() if not key.internal or key.name in own]
            return _Description(names, lambda key: self._topic_entry(name, key, synonyms=synonyms))
        if kind == BROKER:
            return self._node_description(name, synonyms=synonyms)
        if kind == GROUP:
            _require_name(name, "Group name must not be empty")
            own = self._image.configs.get(resource, {})
            names = [key.name for key in GROUP_CONFIGS.values() if not key.internal or key.name in own]
            return _Description(names, lambda key: self._group_entry(name, key, synonyms=synonyms))
        if kind == CLIENT_METRICS:
            _require_name(name, "Client metrics subscription name must not be empty")
            return _Description(CLIENT_METRICS_CONFIGS, lambda key: self._metrics_entry(name, key, synonyms=synonyms))
        if kind == BROKER_LOGGER:
            _require_name(name, "Broker id must not be empty")
            if _broker_id(name) != self.configs.node_id:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"Unexpected broker id, expected {self.configs.node_id} but received {name}",
                )
            return _Description((), lambda key: self._node_entry(key, synonyms=synonyms))  # no loggers to describe
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "This most likely occurs because of a request being malformed by the client library or the message was "
            "sent to an incompatible broker. See the broker logs for more details.",
        )

    def _require_topic(self, name: str) -> None:
        if problem := topic_name_problem(name):
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        if name not in self._image.topic_ids:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    # ---- entries

    def _topic_entry(self, topic: str, name: str, *, synonyms: bool) -> DescribeConfigsResponseConfig:
        key = TOPIC_CONFIGS[name]
        own = self._image.configs.get((TOPIC, topic), {}).get(name)
        if own is None and name in self._of_topics:
            return self._of_topics[name]
        text = self.configs.from_nodes(key).value if own is None else own
        sources = self._own(name, key, own, ConfigSource.TOPIC)
        if SYNONYMS.get(name):
            sources += self._of_node(SYNONYMS[name][0].name)
        entry = _entry(key, _shown(key, text), sources, synonyms=synonyms)
        if own is None:
            self._of_topics[name] = entry
        return entry

    def _group_entry(self, group: str, name: str, *, synonyms: bool) -> DescribeConfigsResponseConfig:
        key = GROUP_CONFIGS[name]
        own = self._image.configs.get((GROUP, group), {}).get(name)
        node_key = group_synonym(name)
        if node_key in node_keys():
            sources = self._of_node(node_key)
        else:
            sources = [DescribeConfigsResponseSynonym(name=name, value=key.default, source=ConfigSource.DEFAULT)]
        text = sources[0].value if own is None and sources else own
        return _entry(
            key, _shown(key, text), self._own(name, key, own, ConfigSource.GROUP) + sources, synonyms=synonyms
        )

    def _metrics_entry(self, subscription: str, name: str, *, synonyms: bool) -> DescribeConfigsResponseConfig:
        key = CLIENT_METRICS_CONFIGS[name]
        own = self._image.configs.get((CLIENT_METRICS, subscription), {}).get(name)
        text = key.default if own is None else own
        return _entry(key, _shown(key, text), self._own(name, key, own, ConfigSource.CLIENT_METRICS), synonyms=synonyms)

    def _own(self, name: str, key: ConfigKey, text: str | None, source: int) -> _Synonyms:
        if text is None:
            return []
        return [DescribeConfigsResponseSynonym(name=name, value=_shown(key, text), source=source)]

    # ---- the node itself

    def _node_description(self, name: str, *, synonyms: bool) -> _Description:
        """Describe this node completely, or the dynamic values of all brokers. Other nodes describe themselves."""
        if not name:
            values = _in_force(self._image.configs.get((BROKER, ""), {}), of_all=True)
            return _Description(values, lambda key: self._default_entry(key, values[key], synonyms=synonyms))
        if _broker_id(name) != self.configs.node_id:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Unexpected broker id, expected {self.configs.node_id} or empty string, but received {name}",
            )
        others = dict.fromkeys(key for values, _ in self._places() for key in values if key not in node_keys())
        return _Description((*node_keys(), *others), lambda key: self._node_entry(key, synonyms=synonyms))

    def _node_entry(self, name: str, *, synonyms: bool) -> DescribeConfigsResponseConfig:
        key = _key(name)
        set_ = next((values[name] for values, _ in self._places() if name in values), None)
        return _entry(key, _shown(key, key.default if set_ is None else set_), self._of_node(name), synonyms=synonyms)

    def _default_entry(self, name: str, text: str, *, synonyms: bool) -> DescribeConfigsResponseConfig:
        key = _key(name)
        value = None if key.sensitive else text
        source = DescribeConfigsResponseSynonym(name=name, value=value, source=ConfigSource.DEFAULT_BROKER)
        return _entry(key, _shown(key, text), [source], synonyms=synonyms)

    def _static(self) -> Mapping[str, str]:
        """Return values of this node's file; ``broker.id`` is ``node.id`` (``KafkaConfig.populateSynonyms``)."""
        node_id = str(self.configs.node_id)
        return {**self.configs.static, "node.id": node_id, "broker.id": node_id}

    def _places(self) -> Iterator[tuple[Mapping[str, str], int]]:
        """Return the sources of this node's values; the first source with a value counts."""
        yield _in_force(self._image.configs.get((BROKER, str(self.configs.node_id)), {})), ConfigSource.BROKER
        yield _in_force(self._image.configs.get((BROKER, ""), {}), of_all=True), ConfigSource.DEFAULT_BROKER
        yield self._static(), ConfigSource.STATIC_BROKER

    def _of_node(self, name: str) -> _Synonyms:
        """The places of a key of this node, from the first that has the key itself."""
        names = _SYNONYMS_OF_NODES.get(name, (name,))
        found = [
            DescribeConfigsResponseSynonym(
                name=each, value=None if _key(each).sensitive else values[each], source=source
            )
            for values, source in self._places()
            for each in names
            if each in values
        ]
        found += [
            DescribeConfigsResponseSynonym(name=each, value=_key(each).default, source=ConfigSource.DEFAULT)
            for each in names
            if _key(each).default is not None
        ]
        start = next((at for at, synonym in enumerate(found) if synonym.name == name), len(found))
        return found[start:]


def _entry(key: ConfigKey, value: str | None, sources: _Synonyms, *, synonyms: bool) -> DescribeConfigsResponseConfig:
    return DescribeConfigsResponseConfig(
        name=key.name,
        value=None if key.sensitive else value,
        read_only=not key.dynamic,
        config_source=sources[0].source if sources else ConfigSource.DEFAULT,
        is_sensitive=key.sensitive,
        synonyms=tuple(sources) if synonyms else (),
        config_type=key.type,
    )


def _shown(key: ConfigKey, text: str | None) -> str | None:
    """Return a value as Kafka shows it. Text, classes and invalid values are unchanged."""
    if text is None or key.type in (ConfigType.STRING, ConfigType.CLASS, ConfigType.PASSWORD):
        return text
    try:
        return show_value(parse_value(key.name, key.type, text))
    except ApiError:
        return text


def _in_force(values: Mapping[str, str], *, of_all: bool = False) -> dict[str, str]:
    """The dynamic values that nodes act on: dynamic, of their type, and for all nodes none of a single one; those of
    somebody's plug-in too (``DynamicBrokerConfig.removeInvalidConfigs``)."""
    return {name: text for name, text in values.items() if _is_in_force(name, text, of_all=of_all)}


def _is_in_force(name: str, text: str, *, of_all: bool) -> bool:
    key = broker_key(name)
    if key is None:
        return True
    if not key.dynamic or (of_all and is_of_single_nodes(name)):
        return False
    try:
        key.parse(text)
    except ApiError:
        return False
    return True


def _key(name: str) -> ConfigKey:
    """Return a key of nodes. For a plug-in's key it is unknown what it means, and whether it is a secret."""
    return broker_key(name) or ConfigKey(name, ConfigType.UNKNOWN, dynamic=False)


def _require_name(name: str, otherwise: str) -> None:
    if not name:
        raise ApiError(ErrorCode.INVALID_REQUEST, otherwise)


def _broker_id(name: str) -> int:
    try:
        return int(name)
    except ValueError:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}") from None
