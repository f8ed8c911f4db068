"""Which brokers each controller has heard, and when a session may have ended: for stories in which time plays a part.

A controller takes a broker for heard when the heartbeat arrives, so not before it was sent; a session can have ended
only when longer than its timeout has passed between that and the answer that is at hand now. As long as this is so of
no broker but those that are silent on purpose, the two controllers cannot differ by their clocks alone. Where it is
not, the machine was too slow: :class:`LateError`, and the story is told anew with longer sessions.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from kjbod.metadata.image import BrokerRegistration, MetadataImage


class LateError(Exception):
    """A session may have ended that the story meant to keep."""


@dataclass(slots=True)
class Sessions:
    """The sessions of one controller's brokers. The times are those of one clock, in seconds."""

    timeout_s: float
    _heard: dict[tuple[int, int], float] = field(default_factory=dict)

    def renew(self, broker_id: int, epoch: int, sent_s: float) -> None:
        """A heartbeat was sent then, and answered."""
        self._heard[broker_id, epoch] = sent_s

    def end(self, broker: BrokerRegistration) -> None:
        """The controller has said that the session is over."""
        self._heard.pop((broker.id, broker.epoch), None)

    def of(self, image: MetadataImage) -> list[BrokerRegistration]:
        """The registered brokers that were heard. What was heard of others can end without a record."""
        return [broker for _, broker in sorted(image.brokers.items()) if (broker.id, broker.epoch) in self._heard]

    def require(self, image: MetadataImage, now_s: float, silent: Collection[int] = ()) -> None:
        """All sessions but those of ``silent`` brokers.

        Raises:
            LateError: one of them may have ended.
        """
        for broker in self.of(image):
            age_s = now_s - self._heard[broker.id, broker.epoch]
            if broker.id not in silent and age_s >= self.timeout_s:
                raise LateError(f"broker {broker.id} was not heard for {age_s:.1f} s")
