"""Parse the command line of a Kafka server (``kafka.Kafka``, ``core/src/main/scala/kafka/Kafka.scala``). Pure."""

from collections.abc import Sequence
from typing import Final

MAIN_CLASSES: Final = ("kafka.Kafka", "kafka.docker.KafkaDockerWrapper")
"""Main classes of a Kafka server."""


def after_main_class(arguments: Sequence[str]) -> Sequence[str] | None:
    """Return the arguments that follow the main class of a Kafka server; None: the command line has no such class."""
    main = next((number for number, one in enumerate(arguments) if one in MAIN_CLASSES), None)
    return None if main is None else arguments[main + 1 :]


def file_argument(rest: Sequence[str]) -> str | None:
    """Return the ``server.properties`` among the arguments that follow the main class; None: there is none."""
    return next((one for one in rest if not one.startswith("--") and "=" not in one), None)
