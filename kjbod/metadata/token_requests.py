"""Authorization of delegation token requests, and answers to refused ones (``KafkaApis``, ``ControllerApis``, KIP-48,
KIP-373). For the controller, and for the agent's listener, which decides before it forwards. Pure."""

from typing import Any, Final

from msgspec import Struct

from kjbod.metadata.acls import Operation, ResourceType
from kjbod.metadata.records import DelegationTokenRecord
from kjbod.metadata.topic_screening import Allows
from kjbod.wire.admin_messages import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import RequestBody, ResponseBody

ANONYMOUS: Final = "User:ANONYMOUS"
NO_MOMENT: Final = -1
"""Value of the times in a refusal."""


class Requester(Struct, frozen=True):
    """Sender of a request for delegation tokens.

    Attributes:
        principal: ``User:alice``.
        permissions: permissions of the principal.
        forwarded: whether a broker forwarded the request.
        token_authenticated: whether the sender logged in by a delegation token.
    """

    principal: str
    permissions: Allows
    forwarded: bool = False
    token_authenticated: bool = False

    @property
    def may_ask(self) -> bool:
        """Return whether the sender may request tokens at all (``allowTokenRequests``): not after a login by a token,
        and not anonymously on a direct connection."""
        return not self.token_authenticated and (self.forwarded or self.principal != ANONYMOUS)

    def may_create_for(self, owner: str) -> bool:
        """Return whether the sender may create a token for this owner."""
        return owner == self.principal or self.permissions.allow(Operation.CREATE_TOKENS, ResourceType.USER, owner)

    def may_describe(self, token: DelegationTokenRecord) -> bool:
        """Return whether the sender may see a token, including its HMAC."""
        return (
            concerns(token, self.principal)
            or self.permissions.allow(Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id)
            or self.permissions.allow(Operation.DESCRIBE_TOKENS, ResourceType.USER, token.owner)
        )


def concerns(token: DelegationTokenRecord, principal: str) -> bool:
    """Return whether the principal is the token's owner, requester or renewer (``ownerOrRenewer``)."""
    return principal in (token.owner, token.requester, *token.renewers)


def owner_of(request: CreateDelegationTokenRequest, requester: str) -> str:
    """Return the principal that will own the token."""
    if not request.owner_principal_name:
        return requester
    return f"{request.owner_principal_type}:{request.owner_principal_name}"


def refuse(request: RequestBody[Any], asks: Requester) -> ResponseBody | None:
    """Return the refusal if the sender may not make the request; None: it is allowed."""
    code = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    if isinstance(request, CreateDelegationTokenRequest):
        return _refuse_new(request, asks)
    if asks.may_ask:
        return None
    match request:
        case RenewDelegationTokenRequest():
            return RenewDelegationTokenResponse(error_code=code, expiry_timestamp=NO_MOMENT)
        case ExpireDelegationTokenRequest():
            return ExpireDelegationTokenResponse(error_code=code, expiry_timestamp=NO_MOMENT)
        case DescribeDelegationTokenRequest():
            return DescribeDelegationTokenResponse(error_code=code)
    raise AssertionError(f"{type(request).__name__} is about no token")


def _refuse_new(request: CreateDelegationTokenRequest, asks: Requester) -> CreateDelegationTokenResponse | None:
    if request.owner_principal_name and request.owner_principal_type is None:
        # Java finds a null here, so its refusal has no name.
        return not_created(ErrorCode.UNKNOWN_SERVER_ERROR, ANONYMOUS, ANONYMOUS)
    owner = owner_of(request, asks.principal)
    if not asks.may_ask:
        return not_created(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, owner, asks.principal)
    if not asks.may_create_for(owner):
        return not_created(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED, owner, asks.principal)
    return None


def not_created(code: ErrorCode, owner: str, requester: str, moment: int = NO_MOMENT) -> CreateDelegationTokenResponse:
    """Return an answer without a token; ``moment`` is the value of the times."""
    owner_type, _, owner_name = owner.partition(":")
    requester_type, _, requester_name = requester.partition(":")
    return CreateDelegationTokenResponse(
        error_code=code,
        principal_type=owner_type,
        principal_name=owner_name,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester_name,
        issue_timestamp=moment,
        expiry_timestamp=moment,
        max_timestamp=moment,
    )
