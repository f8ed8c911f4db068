"""Security whose certificate is given."""

import asyncio

from kjbod.security.certificates import Certificate


class Ending:
    """Security with this certificate, which counts how often it was looked at."""

    def __init__(self, certificate: Certificate | None) -> None:
        self.certificate = certificate
        self.looks = 0
        self.twice = asyncio.Event()

    async def look(self, *, timeout_ms: int) -> None:
        self.looks += 1
        if self.looks > 1:
            self.twice.set()
