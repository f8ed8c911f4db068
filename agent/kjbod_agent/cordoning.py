"""Cordons of an agent's log directories (KIP-1066): their reasons (:mod:`.cordons`) together, and news. Pure."""

from collections.abc import Callable, Collection, Iterator, Mapping

from kjbod.ids import Uuid
from kjbod.metadata.image import MetadataImage
from kjbod_agent.cordons import Admission, brokers_that_are_no_agents
from kjbod_host.log_lines import LogLine, error, info, warning


class Cordoning:
    """Cordons of an agent, and the reasons that they were last told with.

    Args:
        broker_id: the agent's own.
        accept: ``kjbod.placement.accept``.
        path: the path of a directory that is online; None: it is not.

    Attributes:
        admission: whether new partitions come here.
    """

    def __init__(self, *, broker_id: int, accept: str, path: Callable[[Uuid], str | None]) -> None:
        self.admission = Admission(accept=accept)
        self._broker_id = broker_id
        self._path = path
        self._reasons: Mapping[Uuid, str] = {}
        """Directories that were cordoned without a person, and why."""
        self._others: tuple[int, ...] = ()
        """Other brokers that are no agents."""

    def brokers_changed(self, image: MetadataImage) -> None:
        """Learn which of the registered brokers are no agents."""
        self._others = brokers_that_are_no_agents(image, self._broker_id)

    def decide(
        self,
        log_dirs: Collection[Uuid],
        reasons: Mapping[Uuid, str],
        named: Collection[Uuid],
        *,
        can_cordon: bool,
        published: bool,
    ) -> tuple[tuple[Uuid, ...] | None, list[LogLine]]:
        """The directories to cordon, ascending, or None where the cluster knows no cordons; and what is new.

        Args:
            log_dirs: all that are registered.
            reasons: why the agent cordons some of them by itself (:func:`.cordons.why_cordoned`).
            named: those in ``cordoned.log.dirs``.
            can_cordon: whether the cluster knows of cordons.
            published: whether the metadata are known, and so who the other brokers are.
        """
        lines: list[LogLine] = []
        if can_cordon:
            lines += self._new_cordons(reasons)
        if published:
            lines += self._new_admission(Admission(self._others, self.admission.accept, can_cordon))
        every = log_dirs if self.admission.closed else ()
        return tuple(sorted({*every, *reasons, *named})) if can_cordon else None, lines

    def _new_cordons(self, reasons: Mapping[Uuid, str]) -> Iterator[LogLine]:
        before, self._reasons = self._reasons, reasons
        for directory_id, why in reasons.items():
            if before.get(directory_id) != why and (path := self._path(directory_id)) is not None:
                yield warning("directory.cordoned", path=path, reason=why)
        for directory_id in before.keys() - reasons.keys():
            if (path := self._path(directory_id)) is not None:
                yield info("directory.uncordoned", path=path)

    def _new_admission(self, now: Admission) -> Iterator[LogLine]:
        before, self.admission = self.admission, now
        if now.text == before.text:
            return
        if now.text is None:
            yield info("placement.open", reason="all other brokers are kjbod agents")
        elif now.exposed:
            yield error("placement.exposed", reason=now.text)
        else:
            yield warning("placement.closed" if now.closed else "placement.open", reason=now.text)
