"""The clients: writers that never stop, whatever is struck, and readers that watch for dips."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any
from urllib.parse import quote

import aiohttp

from cluster.chaos.ledger import Key, Ledger, Outcome, Write
from cluster.expected import BoardSpec

COUNTERS = "counters"
SUMS, BESTS, LATEST = "chaos-sum", "chaos-best", "chaos-latest"
BOARDS = {
    spec.name: spec
    for spec in (
        BoardSpec(SUMS, "sum", ties="member"),
        BoardSpec(BESTS, "best", ties="member"),
        BoardSpec(LATEST, "latest", ties="member"),
        BoardSpec(COUNTERS, "sum", ties="member"),  # built in
    )
}
REQUEST_S = 2.0  # then a write is in doubt
THINK_S = (0.005, 0.03)
UNREACHED_S = 0.1  # after a refused connection
READ_S = 0.04
READ_KEYS = 24
AMOUNT_MAX = 1_000
SCORE_MAX = 1_000_000


def outcome_of(status: int, document: Any) -> Outcome:
    """What an answer says of a write. Only `definite: true` is a promise that nothing was stored.

    An answer that is no problem document of ours is in doubt, too.
    """
    if 200 <= status < 300:
        return Outcome.OK
    definite = isinstance(document, dict) and document.get("definite") is True
    return Outcome.REFUSED if definite else Outcome.INDEFINITE


class Client:
    """A writer that sends one request after another to one agent, until it is told to stop.

    Its own keys nobody else writes; shared ones all clients of all regions write.
    """

    def __init__(self, ledger: Ledger, agent: str, url: str, number: int, seed: int) -> None:
        self._ledger = ledger
        self._agent = agent
        self._url = url
        self._owner = f"{agent}-{number}"
        self._chance = Random(f"{seed} {self._owner}")

    async def run(self, until: Callable[[], bool]) -> None:
        """Write until told to stop; every request is answered, refused or in doubt by then."""
        kinds: list[tuple[Callable[[], Awaitable[bool]], int]] = [
            (self._grow, 30),
            (self._up_and_down, 20),
            (self._shared, 20),
            (self._several, 10),
            (self._best, 10),
            (self._latest, 10),
        ]
        calls, weights = [kind for kind, _ in kinds], [weight for _, weight in kinds]
        timeout = aiohttp.ClientTimeout(total=REQUEST_S)
        async with aiohttp.ClientSession(timeout=timeout) as self._session:
            while not until():
                reached = await self._chance.choices(calls, weights)[0]()
                pause = self._chance.uniform(*THINK_S) if reached else UNREACHED_S
                await asyncio.sleep(pause)

    async def _grow(self) -> bool:
        key = self._ledger.key(COUNTERS, "own", "sum", owner=self._owner)
        return await self._count(key, self._amount())

    async def _up_and_down(self) -> bool:
        key = self._ledger.key(COUNTERS, "both", "sum", owner=self._owner, grows=False)
        return await self._count(key, self._amount() * self._chance.choice((1, 1, -1)))

    async def _shared(self) -> bool:
        return await self._count(self._ledger.key(COUNTERS, "all", "sum"), self._amount())

    async def _several(self) -> bool:
        """One request for two members: it counts for both, or for none."""
        pair = [
            self._ledger.key(SUMS, f"pair{i}", "sum", owner=self._owner, grows=False)
            for i in range(2)
        ]
        amounts = [self._amount() for _ in pair]
        entries = [{"member": key.member, "add": n} for key, n in zip(pair, amounts, strict=True)]
        path = f"/v1/boards/{SUMS}/entries"
        return await self._send(pair, amounts, path, {"entries": entries})

    async def _best(self) -> bool:
        own = self._chance.random() < 0.5
        key = self._ledger.key(BESTS, "best", "best", owner=self._owner if own else "")
        return await self._score(key, self._chance.randint(0, SCORE_MAX))

    async def _latest(self) -> bool:
        """The agent's hybrid clock gives the time, so that the last write of a client stands."""
        key = self._ledger.key(LATEST, "latest", "latest", owner=self._owner)
        return await self._score(key, self._chance.randint(0, SCORE_MAX))

    def _amount(self) -> int:
        return self._chance.randint(1, AMOUNT_MAX)

    async def _count(self, key: Key, amount: int) -> bool:
        path = f"/v1/counters/{quote(key.member)}"
        return await self._send([key], [amount], path, {"by": amount})

    async def _score(self, key: Key, score: int) -> bool:
        body = {"member": key.member, "score": score}
        return await self._send([key], [score], f"/v1/boards/{key.board}/entries", body)

    async def _send(self, keys: list[Key], numbers: list[int], path: str, body: Any) -> bool:
        """Send one request and note its outcome for each key. False: the agent was not reached."""
        now = asyncio.get_running_loop().time
        ledger = self._ledger
        pairs = list(zip(keys, numbers, strict=True))
        writes = [ledger.begin(key, self._agent, number, now()) for key, number in pairs]
        look = ledger.looking(self._agent, keys[0])
        try:
            async with self._session.post(self._url + path, json=body) as response:
                document = await response.json(content_type=None)
                outcome = outcome_of(response.status, document)
        except aiohttp.ClientConnectorError:
            _end_all(ledger, keys, writes, Outcome.REFUSED, now())  # nothing was ever sent
            return False
        except (aiohttp.ClientError, TimeoutError, ValueError):
            _end_all(ledger, keys, writes, Outcome.INDEFINITE, now())
            return True
        _end_all(ledger, keys, writes, outcome, now())
        if outcome is Outcome.OK and keys[0].board == COUNTERS and keys[0].grows:
            ledger.saw(look, document["value"])
        return True


def _end_all(
    ledger: Ledger, keys: list[Key], writes: list[Write], outcome: Outcome, now_s: float
) -> None:
    for key, write in zip(keys, writes, strict=True):
        ledger.end(key, write, outcome, now_s)


async def read_on(
    ledger: Ledger, agent: str, url: str, seed: int, until: Callable[[], bool]
) -> None:
    """Read counters at one agent again and again, and have the ledger judge what is shown."""
    chance = Random(f"{seed} reads {agent}")
    timeout = aiohttp.ClientTimeout(total=REQUEST_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while not until():
            await asyncio.sleep(READ_S)
            keys = [key for key in ledger.growing(READ_KEYS) if key.board == COUNTERS]
            if not keys:
                continue
            look = ledger.looking(agent, chance.choice(keys))
            try:
                async with session.get(f"{url}/v1/counters/{quote(look.key.member)}") as response:
                    document = await response.json(content_type=None)
                    status = response.status
            except (aiohttp.ClientError, TimeoutError, ValueError):
                continue
            if status == 200:
                ledger.saw(look, document["value"])
