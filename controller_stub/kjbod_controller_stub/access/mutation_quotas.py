"""Controller mutation quotas: how many partitions a client may create and delete per second (KIP-599,
``ControllerMutationQuotaManager``). Pure: the time comes from the caller.

Each limit is a bucket of tokens, one for each partition. It holds so many seconds of the rate as
``controller.quota.window.num`` times ``controller.quota.window.size.seconds``, is full at first, and may be overdrawn
by the last change that found it at zero or above. While it is overdrawn, a *strict* request gets
THROTTLING_QUOTA_EXCEEDED for each topic, and a *permissive* one, of a version from before that error, is done and
overdraws it further. Both are told how long the bucket takes to come back to zero.

Buckets are soft state: not in the log, and full after a restart, as in Kafka. The rates come from the metadata with
every request, so a change counts from the next one on and keeps what is in the bucket.
"""

import math
from collections.abc import Mapping
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from kjbod.metadata.records import QuotaEntity
from kjbod.wire.error_codes import ErrorCode
from kjbod_controller_stub.access.quotas import CLIENT_ID, USER
from kjbod_controller_stub.results import ApiError

MUTATION_RATE: Final = "controller_mutation_rate"
STRICT_SINCE_CREATE_TOPICS: Final = 6
STRICT_SINCE_CREATE_PARTITIONS: Final = 3
STRICT_SINCE_DELETE_TOPICS: Final = 5
"""The version of each API that knows the error."""
WINDOW_NUM: Final = 11
WINDOW_SIZE_S: Final = 1
"""Kafka's defaults of ``controller.quota.window.num`` and ``controller.quota.window.size.seconds``."""
EXPIRY_MS: Final = 3_600_000
"""A bucket from which nothing was taken for so long is forgotten, and full when it is asked for again
(``ClientQuotaManager.INACTIVE_SENSOR_EXPIRATION_TIME_SECONDS``)."""
BUCKETS_MAX: Final = 10_000
"""Buckets that are kept; clients choose their ids, and who has very many must not fill the memory. The one that was
not used for longest goes, and is full when it comes back."""
INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1

Quotas: TypeAlias = Mapping[tuple[QuotaEntity, ...], Mapping[str, float]]
"""All limits of the metadata, by entity; its parts are sorted by type (``MetadataImage.quotas``)."""


class Owner(Struct, frozen=True):
    """Owner of a bucket: all clients of a user, all users of a client id, or one user with one client id.
    Empty: any."""

    user: str
    client_id: str


def owner_of(quotas: Quotas, user: str, client_id: str) -> Owner:
    """Return the owner of the bucket for a client (``DefaultQuotaCallback.quotaMetricTags``): that of the first
    existing limit. Limits of the user come first, then those of the default user, then those of client ids alone."""
    both, all_of_user = Owner(user, client_id), Owner(user, "")
    for entity, owner in (
        ((_client(client_id), _user(user)), both),
        ((_client(None), _user(user)), both),
        ((_user(user),), all_of_user),
        ((_client(client_id), _user(None)), both),
        ((_client(None), _user(None)), both),
        ((_user(None),), all_of_user),
    ):
        if MUTATION_RATE in quotas.get(entity, ()):
            return owner
    return Owner("", client_id)


def rate_of(quotas: Quotas, owner: Owner) -> float | None:
    """Return the partitions per second of an owner's bucket (``DefaultQuotaCallback.quotaLimit``); None: no limit."""
    user, client_id = owner.user, owner.client_id
    entities: list[tuple[QuotaEntity, ...]] = []
    if user and client_id:
        entities = [(_client(one), _user(other)) for other in (user, None) for one in (client_id, None)]
    elif user:
        entities = [(_user(user),), (_user(None),)]
    elif client_id:
        entities = [(_client(client_id),), (_client(None),)]
    for entity in entities:
        rate = quotas.get(entity, {}).get(MUTATION_RATE)
        if rate is not None:
            return rate if math.isfinite(rate) else None
    return None


def _user(name: str | None) -> QuotaEntity:
    return QuotaEntity(entity_type=USER, entity_name=name)


def _client(name: str | None) -> QuotaEntity:
    return QuotaEntity(entity_type=CLIENT_ID, entity_name=name)


# ---------------------------------------------------------------- buckets


class Bucket(Struct, frozen=True):
    """Tokens of a bucket at a moment (``TokenBucket``)."""

    tokens: float
    at_ms: int
    taken_ms: int
    """When something was last taken, or when it was new."""

    def refilled(self, rate: float, capacity_s: int, now_ms: int) -> "Bucket":
        """Return the tokens in the bucket now."""
        tokens = self.tokens + rate * (now_ms - self.at_ms) / 1_000
        return replace(self, tokens=min(rate * capacity_s, tokens), at_ms=now_ms)

    def less(self, tokens: int) -> "Bucket":
        """After so many were taken."""
        return replace(self, tokens=self.tokens - tokens, taken_ms=self.at_ms)

    def wait_ms(self, rate: float) -> int:
        """Return the milliseconds until the bucket is back at zero."""
        if not self.overdrawn:
            return 0
        return math.floor(min(-self.tokens / rate * 1_000, _LONG_MAX) + 0.5)

    @property
    def overdrawn(self) -> bool:
        """Whether more tokens were taken than there were."""
        return self.tokens < 0


class Charge:
    """Charge of one request (``ControllerMutationQuota``); this class charges nothing."""

    throttle_time_ms = 0
    """How long the client has to wait before it changes something again, for the answer."""

    def take(self, partitions: int) -> None:
        """Take tokens for partitions that are created or deleted next.

        Raises:
            ApiError: THROTTLING_QUOTA_EXCEEDED: they must not be.
        """


UNLIMITED: Final = Charge()


class MutationQuotas:
    """The buckets of all clients."""

    def __init__(self, *, capacity_s: int = WINDOW_NUM * WINDOW_SIZE_S, bounds_throttle_time: bool = True) -> None:
        self._capacity_s = capacity_s
        self._bounds_throttle_time = bounds_throttle_time
        self._buckets: dict[Owner, Bucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def charge(self, quotas: Quotas, principal: str, client_id: str, *, strict: bool, now_ms: int) -> Charge:
        """Return the charge for a request of this client; ``principal`` is ``type:name``, and only the name counts."""
        if not quotas:
            return UNLIMITED
        owner = owner_of(quotas, principal.partition(":")[2], client_id)
        rate = rate_of(quotas, owner)
        if rate is None:
            self._buckets.pop(owner, None)  # without a limit it is full at once, for when there is one again
            return UNLIMITED
        return _Limited(self, owner, rate, strict=strict, now_ms=now_ms)

    def take(self, owner: Owner, rate: float, partitions: int, *, strict: bool, now_ms: int) -> tuple[bool, int]:
        """Take from a bucket. Return whether the request is allowed, and the time that the client must wait.

        A strict client takes only from a bucket that is not overdrawn, and does not wait then however much it took.
        """
        bucket = self._buckets.pop(owner, None)
        if bucket is None or now_ms - bucket.taken_ms > EXPIRY_MS:
            bucket = Bucket(rate * self._capacity_s, now_ms, now_ms)
        bucket = bucket.refilled(rate, self._capacity_s, now_ms)
        refused = strict and bucket.overdrawn
        if not refused:
            bucket = bucket.less(partitions)
        wait_ms = bucket.wait_ms(rate) if refused or not strict else 0
        self._buckets[owner] = bucket  # the last in line now
        if len(self._buckets) > BUCKETS_MAX:
            del self._buckets[next(iter(self._buckets))]
        return not refused, self._as_int(wait_ms)

    def _as_int(self, wait_ms: int) -> int:
        """Return milliseconds in the range of the answer's field: 24 days at most, or Kafka's value for more."""
        if self._bounds_throttle_time:
            return min(wait_ms, INT_MAX)
        return max(0, (wait_ms + INT_MAX + 1) % 2**32 - INT_MAX - 1)


class _Limited(Charge):
    """Charge that takes from a bucket."""

    def __init__(self, buckets: MutationQuotas, owner: Owner, rate: float, *, strict: bool, now_ms: int) -> None:
        self._buckets = buckets
        self._owner = owner
        self._rate = rate
        self._strict = strict
        self._now_ms = now_ms

    def take(self, partitions: int) -> None:
        allowed, wait_ms = self._buckets.take(
            self._owner, self._rate, partitions, strict=self._strict, now_ms=self._now_ms
        )
        if wait_ms:
            self.throttle_time_ms = wait_ms
        if not allowed:
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
