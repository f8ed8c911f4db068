"""Certificates that end, or whose files cannot be used any more: what is said of them."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kjbod.clock import SystemClock
from kjbod.errors import KjbodError
from kjbod.metrics.certificates import ends_of_certificates
from kjbod.metrics.listener import render
from kjbod.security import channel
from kjbod.security.certificates import Certificate, Certificates
from kjbod.security.channel import NAMED_EVERY_MS, Security
from kjbod.security.keys import SSL, ChannelSettings
from kjbod.security.tls_keys import Tls
from scripts.rig.certificates import NOT_AFTER, Authority
from tests.security.ending import Ending

DAY_MS = 86_400_000
NOW_MS = 1_800_000_000_000
NAME = "ssl.keystore.location=/etc/kafka/host.pem"
TIMEOUT_MS = 20_000


def ours(days: float | None, not_renewed: str = "") -> Certificate:
    ends = None if days is None else NOW_MS + round(days * DAY_MS)
    return Certificate("ssl.keystore.location", "/etc/kafka/host.pem", ends, not_renewed)


def of(*each: Certificate | None) -> Certificates:
    found = Certificates()
    for number, one in enumerate(each):
        found.add(f"use {number}", Ending(one))
    return found


@pytest.mark.parametrize(
    ("certificate", "reasons"),
    [
        (ours(30), []),
        (ours(7.01), []),
        (ours(7), [f"the certificate of {NAME} ends on 2027-01-22 08:00:00Z"]),
        (ours(0), [f"the certificate of {NAME} has ended, on 2027-01-15 08:00:00Z"]),
        (ours(None), []),
        (ours(30, "no key"), [f"{NAME} has changed and cannot be used, the one before it still is: no key"]),
        (None, []),
    ],
)
def test_who_has_not_renewed_a_week_before_the_end_is_told(certificate: Certificate | None, reasons: list[str]) -> None:
    assert of(certificate).reasons(NOW_MS) == reasons


def test_a_file_that_serves_two_purposes_is_named_once() -> None:
    both = of(ours(3), ours(3), None)
    assert len(both.reasons(NOW_MS)) == 1
    assert [row["uses"] for row in both.as_json()] == [["use 0", "use 1"]]


def test_the_first_to_end_comes_first() -> None:
    later = Certificate("ssl.truststore.location", "", None)
    assert [row["key"] for row in of(later, ours(1)).as_json()] == ["ssl.keystore.location", "ssl.truststore.location"]


def test_the_end_is_a_moment_that_an_alert_can_compare() -> None:
    text = render([ends_of_certificates(of(ours(0)).ends())]).decode()
    assert f'kjbod_certificate_not_after_timestamp_seconds{{store="{NAME}",use="use 0"}} 1.8e+09' in text


async def test_all_are_looked_at_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "LOOK_INTERVAL_S", 0.0)

    class Refusing(Ending):
        async def look(self, *, timeout_ms: int) -> None:
            await super().look(timeout_ms=timeout_ms)
            raise KjbodError("no such file")

    refusing, other, found = Refusing(None), Ending(None), Certificates()
    for each in (refusing, other):
        found.add("use", each)
    looking = asyncio.ensure_future(channel.look_again(found))
    await other.twice.wait()
    looking.cancel()
    assert refusing.looks >= 2


class Days(SystemClock):
    """A clock that stands some days before a moment."""

    def __init__(self, end: datetime, days: int) -> None:
        self.wall = round((end - timedelta(days=days)).timestamp() * 1000)
        self.now = 0

    def wall_ms(self) -> int:
        return self.wall + self.now

    def monotonic_ms(self) -> int:
        return self.now


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Events of the log."""
    found: list[str] = []

    class Log:
        def warning(self, event: str, **_: Any) -> None:
            found.append(event)

        info = warning

    monkeypatch.setattr(channel, "_log", Log())
    return found


def secured(base: Path, authority: Authority, clock: Days) -> Security:
    tls = Tls("s", authority.leaf("localhost").keystore(base), authority.truststore(base))
    return Security(ChannelSettings(SSL, tls), clock=clock)


async def test_a_certificate_near_its_end_is_named_each_day_until_it_is_replaced(
    tmp_path: Path, said: list[str]
) -> None:
    clock = Days(NOT_AFTER, 20)
    security = secured(tmp_path, Authority.make(), clock)
    for _ in range(3):
        await security.look(timeout_ms=TIMEOUT_MS)
    assert said == ["security.certificate.expires"]
    clock.now += NAMED_EVERY_MS
    await security.look(timeout_ms=TIMEOUT_MS)
    assert said == ["security.certificate.expires"] * 2
    clock.now += 20 * DAY_MS
    await security.look(timeout_ms=TIMEOUT_MS)
    assert said[2:] == ["security.certificate.expired"]


async def test_a_look_takes_a_renewed_certificate_without_any_connection(tmp_path: Path, said: list[str]) -> None:
    authority = Authority.make()
    security = secured(tmp_path, authority, Days(NOT_AFTER, 90))
    await security.look(timeout_ms=TIMEOUT_MS)
    authority.leaf("localhost").keystore(tmp_path)
    await security.look(timeout_ms=TIMEOUT_MS)
    assert said == ["security.renewed"]
    assert security.certificate == Certificate(
        "ssl.keystore.location", str(tmp_path / "keystore.pem"), round(NOT_AFTER.replace(tzinfo=UTC).timestamp() * 1000)
    )


async def test_a_file_that_cannot_be_used_is_shown_until_it_was_put_back(tmp_path: Path, said: list[str]) -> None:
    security = secured(tmp_path, Authority.make(), Days(NOT_AFTER, 90))
    await security.look(timeout_ms=TIMEOUT_MS)
    keystore = tmp_path / "keystore.pem"
    keystore.rename(tmp_path / "aside")
    await security.look(timeout_ms=TIMEOUT_MS)
    shown = security.certificate
    assert shown is not None and "No such file" in shown.not_renewed
    (tmp_path / "aside").rename(keystore)
    await security.look(timeout_ms=TIMEOUT_MS)
    assert security.certificate is not None and security.certificate.not_renewed == ""
