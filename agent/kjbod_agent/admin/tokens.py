"""Delegation tokens at an agent's listener, which lists them from the metadata as Kafka's brokers do
(``KafkaApis.handleDescribeTokensRequest``, ``DelegationTokenManager``, KIP-48). Pure.
"""

from collections.abc import Iterator
from typing import Final

from kjbod.metadata.image import MetadataImage
from kjbod.metadata.records import DelegationTokenRecord
from kjbod.metadata.token_requests import Requester, concerns
from kjbod.security.tokens import hmac_of
from kjbod.wire.admin_messages import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponseRenewer,
    DescribeDelegationTokenResponseToken,
)
from kjbod.wire.messages import ApiKey

TOKEN_APIS: Final = frozenset(
    {
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
    }
)


def describe(
    image: MetadataImage, request: DescribeDelegationTokenRequest, asks: Requester, secret_key: str
) -> Iterator[DescribeDelegationTokenResponseToken | None]:
    """Yield each requested token that the client may see, and None for any other, so that the caller can pause."""
    owners = None
    if request.owners is not None:
        owners = [f"{owner.principal_type}:{owner.principal_name}" for owner in request.owners]
    for token in tuple(image.delegation_tokens.values()):
        wanted = owners is None or any(concerns(token, owner) for owner in owners)
        yield _described(token, secret_key) if wanted and asks.may_describe(token) else None


def _described(token: DelegationTokenRecord, secret_key: str) -> DescribeDelegationTokenResponseToken:
    owner_type, _, owner_name = token.owner.partition(":")
    requester_type, _, requester_name = token.requester.partition(":")
    renewers = (renewer.partition(":") for renewer in token.renewers)
    return DescribeDelegationTokenResponseToken(
        principal_type=owner_type,
        principal_name=owner_name,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester_name,
        issue_timestamp=token.issue_timestamp,
        expiry_timestamp=token.expiration_timestamp,
        max_timestamp=token.max_timestamp,
        token_id=token.token_id,
        hmac=hmac_of(token.token_id, secret_key),
        renewers=tuple(
            DescribeDelegationTokenResponseRenewer(principal_type=kind, principal_name=name)
            for kind, _, name in renewers
        ),
    )
