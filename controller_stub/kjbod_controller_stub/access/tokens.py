"""Delegation tokens: create, renew, expire, and remove expired ones (``DelegationTokenControlManager``, KIP-48,
KIP-373, KIP-900). Pure. :mod:`kjbod.metadata.token_requests` authorizes the requests before.

A token's secret is in no record: it follows from the token's id and ``delegation.token.secret.key``
(:mod:`kjbod.security.tokens`). Without that key there are no tokens.

Kafka needs no right for a token of one's own, and has no limits here; :data:`RENEWERS_MAX`, :data:`TOKENS_MAX` and
:data:`TOKENS_OF_ONE_MAX` are kjbod's. Each broker keeps all tokens, and computes two passwords for each at its start.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from msgspec import structs

from kjbod.config.keys import LONG_MAX
from kjbod.ids import Uuid
from kjbod.metadata import versions
from kjbod.metadata.image import Change, MetadataImage, OtherChange
from kjbod.metadata.records import DelegationTokenRecord, RemoveDelegationTokenRecord
from kjbod.metadata.token_requests import not_created, owner_of
from kjbod.security.tokens import hmac_of
from kjbod.wire.admin_messages import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod_controller_stub.results import Draft

RENEWERS_MAX: Final = 1_000
"""Of one token. Kafka takes what the request has room for, and every broker keeps it."""
TOKENS_MAX: Final = 100_000
TOKENS_OF_ONE_MAX: Final = 10_000
"""Tokens at a time that one principal may have asked for, for itself and for others."""
PRINCIPAL_BYTES_MAX: Final = 32_767
"""Length of a principal in a record that Kafka can read; a request has room for one whose type makes it longer."""
REMOVED_AT_ONCE_MAX: Final = 1_000
"""Expired tokens that one pass removes (``sweepExpiredDelegationTokens``)."""
_USER: Final = "User"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """Delegation token settings from the configuration.

    Attributes:
        secret_key: ``delegation.token.secret.key``; None: there are no tokens.
        max_lifetime_ms: ``delegation.token.max.lifetime.ms``.
        expiry_time_ms: ``delegation.token.expiry.time.ms``.
        check_interval_ms: ``delegation.token.expiry.check.interval.ms``.
    """

    secret_key: str | None = field(default=None, repr=False)
    max_lifetime_ms: int = 604_800_000
    expiry_time_ms: int = 86_400_000
    check_interval_ms: int = 3_600_000


class DelegationTokens:
    """All delegation tokens, by their HMAC.

    Args:
        image: the metadata.
        settings: delegation token settings.
        draw_id: draws ids of tokens.
        wall_ms: now since 1970, by which tokens expire.
    """

    def __init__(
        self,
        image: MetadataImage,
        settings: TokenSettings,
        draw_id: Callable[[], Uuid],
        wall_ms: Callable[[], int],
    ) -> None:
        self._image = image
        self._settings = settings
        self._draw_id = draw_id
        self._wall_ms = wall_ms
        self._ids: dict[bytes, str] = {}
        self._requesters: dict[str, str] = {}
        """By token id."""
        self._counts: Counter[str] = Counter()
        """Tokens by requester."""

    def apply(self, change: Change) -> None:
        """Follow a change of the metadata."""
        if not isinstance(change, OtherChange) or self._settings.secret_key is None:
            return
        record = change.record
        if isinstance(record, DelegationTokenRecord):
            self._forget(record.token_id, self._settings.secret_key)
            self._ids[hmac_of(record.token_id, self._settings.secret_key)] = record.token_id
            self._requesters[record.token_id] = record.requester
            self._counts[record.requester] += 1
        elif isinstance(record, RemoveDelegationTokenRecord):
            self._forget(record.token_id, self._settings.secret_key)

    def _forget(self, token_id: str, secret_key: str) -> None:
        requester = self._requesters.pop(token_id, None)
        if requester is None:
            return
        del self._ids[hmac_of(token_id, secret_key)]
        self._counts[requester] -= 1
        if not self._counts[requester]:
            del self._counts[requester]

    # ---- create

    def create(
        self, draft: Draft, request: CreateDelegationTokenRequest, requester: str
    ) -> CreateDelegationTokenResponse:
        """Create a token for the sender or for another owner (KIP-373)."""
        owner, secret_key = owner_of(request, requester), self._settings.secret_key
        code = self._disabled() or self._excess(request, owner, requester)
        if code is not None or secret_key is None:
            return not_created(code or ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, owner, requester, moment=0)
        record = self._record(request, owner, requester)
        draft.add(record)
        return structs.replace(
            not_created(ErrorCode.NONE, owner, requester),
            issue_timestamp=record.issue_timestamp,
            expiry_timestamp=record.expiration_timestamp,
            max_timestamp=record.max_timestamp,
            token_id=record.token_id,
            hmac=hmac_of(record.token_id, secret_key),
        )

    def _excess(self, request: CreateDelegationTokenRequest, owner: str, requester: str) -> ErrorCode | None:
        """The error of a request for more than may be; None: it is not."""
        if any(renewer.principal_type != _USER for renewer in request.renewers):
            return ErrorCode.INVALID_PRINCIPAL_TYPE
        if (
            len(request.renewers) > RENEWERS_MAX
            or len(self._image.delegation_tokens) >= TOKENS_MAX
            or self._counts[requester] >= TOKENS_OF_ONE_MAX
        ):
            return ErrorCode.POLICY_VIOLATION
        names = (owner, requester, *_renewers(request))
        if any(len(name.encode()) > PRINCIPAL_BYTES_MAX for name in names):
            return ErrorCode.INVALID_REQUEST
        return None

    def _record(self, request: CreateDelegationTokenRequest, owner: str, requester: str) -> DelegationTokenRecord:
        now_ms, lifetime_ms = self._wall_ms(), self._settings.max_lifetime_ms
        if request.max_lifetime_ms > 0:
            lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
        max_timestamp = _sum(now_ms, lifetime_ms)
        return DelegationTokenRecord(
            owner=owner,
            requester=requester,
            renewers=_renewers(request),
            issue_timestamp=now_ms,
            max_timestamp=max_timestamp,
            expiration_timestamp=min(max_timestamp, _sum(now_ms, self._settings.expiry_time_ms)),
            token_id=str(self._draw_id()),
        )

    # ---- renew, expire

    def renew(self, draft: Draft, request: RenewDelegationTokenRequest, requester: str) -> RenewDelegationTokenResponse:
        """Renew a token, at most to the end of its lifetime."""
        found = self._find(request.hmac)
        if isinstance(found, ErrorCode):
            return RenewDelegationTokenResponse(error_code=found)
        now_ms, period_ms = self._wall_ms(), self._settings.expiry_time_ms
        if _is_over(found, now_ms):
            return RenewDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_EXPIRED)
        if not _may_change(found, requester):
            return RenewDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
        if request.renew_period_ms > 0:
            period_ms = min(period_ms, request.renew_period_ms)
        expires_ms = min(found.max_timestamp, _sum(now_ms, period_ms))
        draft.add(structs.replace(found, expiration_timestamp=expires_ms))
        return RenewDelegationTokenResponse(expiry_timestamp=expires_ms)

    def expire(
        self, draft: Draft, request: ExpireDelegationTokenRequest, requester: str
    ) -> ExpireDelegationTokenResponse:
        """Set another expiry time for a token, or expire it at once with a negative period."""
        found = self._find(request.hmac)
        if isinstance(found, ErrorCode):
            return ExpireDelegationTokenResponse(error_code=found)
        now_ms = self._wall_ms()
        if not _may_change(found, requester):
            return ExpireDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
        if request.expiry_time_period_ms < 0:
            draft.add(RemoveDelegationTokenRecord(token_id=found.token_id))
            return ExpireDelegationTokenResponse(expiry_timestamp=now_ms)
        if _is_over(found, now_ms):
            return ExpireDelegationTokenResponse(error_code=ErrorCode.DELEGATION_TOKEN_EXPIRED)
        expires_ms = min(found.max_timestamp, _sum(now_ms, request.expiry_time_period_ms))
        draft.add(structs.replace(found, expiration_timestamp=expires_ms))
        return ExpireDelegationTokenResponse(expiry_timestamp=expires_ms)

    def remove_expired(self, draft: Draft) -> bool:
        """Remove expired tokens, and return whether there may be more of them."""
        now_ms = self._wall_ms()
        over = (token.token_id for token in self._image.delegation_tokens.values() if _is_over(token, now_ms))
        removed = list(islice(over, REMOVED_AT_ONCE_MAX))
        for token_id in removed:
            draft.add(RemoveDelegationTokenRecord(token_id=token_id))
        if removed:
            draft.note("delegation.tokens.expired", count=len(removed))
        return len(removed) == REMOVED_AT_ONCE_MAX

    def _disabled(self) -> ErrorCode | None:
        """Return the error if delegation tokens are disabled; None: they are enabled."""
        if self._settings.secret_key is None:
            return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        if self._image.metadata_version < versions.DELEGATION_TOKENS:
            return ErrorCode.UNSUPPORTED_VERSION
        return None

    def _find(self, hmac: bytes) -> DelegationTokenRecord | ErrorCode:
        if (code := self._disabled()) is not None:
            return code
        token = self._image.delegation_tokens.get(self._ids.get(hmac, ""))
        return ErrorCode.DELEGATION_TOKEN_NOT_FOUND if token is None else token


def _renewers(request: CreateDelegationTokenRequest) -> tuple[str, ...]:
    return tuple(f"{renewer.principal_type}:{renewer.principal_name}" for renewer in request.renewers)


def _may_change(token: DelegationTokenRecord, principal: str) -> bool:
    return principal == token.owner or principal in token.renewers


def _is_over(token: DelegationTokenRecord, now_ms: int) -> bool:
    return token.max_timestamp < now_ms or token.expiration_timestamp < now_ms


def _sum(now_ms: int, duration_ms: int) -> int:
    return min(now_ms + duration_ms, LONG_MAX)
