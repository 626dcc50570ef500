"""The Lua scripts, and how a conditional change is put together.

Every change of Redis is one call of `apply.lua`: it compares the watermark with what its sender
believes, then does all of its steps, among them the move of the watermark, or none. A retry, a late
duplicate on an old connection and a second agent are all refused by the same comparison.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from redis.exceptions import NoScriptError

from agent.projection.connection import RankClient
from agent.projection.keys import Guard

Part: TypeAlias = str | bytes | int

# Lua's `unpack` puts a step's arguments on a stack of 8,000.
STEP_ARGUMENTS_MAX = 4_000
# Of one call, where they are many and each is small: Redis does about a million a second.
STEPS_MAX = 1_000


class Script:
    """A Lua script of this package, sent by its digest and in full only where it is unknown."""

    def __init__(self, file_name: str) -> None:
        self._text = (Path(__file__).parent / file_name).read_text()
        self._digest = hashlib.sha1(self._text.encode(), usedforsecurity=False).hexdigest()

    async def call(
        self, client: RankClient, keys: Sequence[Part], arguments: Sequence[Part]
    ) -> Any:
        """Run the script.

        Raises:
            redis.exceptions.RedisError: the outcome is unknown where the connection failed.
        """
        try:
            return await client.command("EVALSHA", self._digest, len(keys), *keys, *arguments)
        except NoScriptError:
            return await client.command("EVAL", self._text, len(keys), *keys, *arguments)


APPLY = Script("apply.lua")
RANKS = Script("ranks.lua")
AMONG = Script("among.lua")


class Change:
    """The steps of one conditional change, in order."""

    def __init__(self) -> None:
        self._keys: list[Part] = []
        self._arguments: list[Part] = []

    def __bool__(self) -> bool:
        """Whether there is any step."""
        return bool(self._arguments)

    @property
    def full(self) -> bool:
        """Whether it is time to make this change, and go on with another one."""
        return len(self._keys) >= STEPS_MAX

    def add(self, key: str, scores_and_members: Sequence[bytes]) -> None:
        """Set members' scores: score, member, score, member, and so on."""
        for start in range(0, len(scores_and_members), STEP_ARGUMENTS_MAX):
            part = scores_and_members[start : start + STEP_ARGUMENTS_MAX]
            self._keys.append(key)
            self._arguments += ("ZADD", 1, len(part), *part)

    def put(self, key: bytes, value: bytes) -> None:
        """Set a string."""
        self._keys.append(key)
        self._arguments += ("SET", 1, 1, value)

    def fields(self, key: str, fields: Mapping[str, str]) -> None:
        """Set fields of a hash; others stay."""
        self._keys.append(key)
        self._arguments += ("HSET", 1, 2 * len(fields))
        for name, value in fields.items():
            self._arguments += (name, value)

    def unlink(self, key: Part) -> None:
        """Remove a key; its memory is freed in the background."""
        self._keys.append(key)
        self._arguments += ("UNLINK", 1, 0)

    def remove(self, key: str, member: bytes) -> None:
        """Take a member out of a sorted set; without its last member there is no set."""
        self._keys.append(key)
        self._arguments += ("ZREM", 1, 1, member)

    def expire(self, key: str, at_ms: int) -> None:
        """Have a key, if it is there, removed at a time, in ms since 1970."""
        self._keys.append(key)
        self._arguments += ("PEXPIREAT", 1, 1, at_ms)

    def persist(self, key: str) -> None:
        """Have a key stay until it is removed."""
        self._keys.append(key)
        self._arguments += ("PERSIST", 1, 0)

    def move(self, source: str, target: str) -> None:
        """Rename a key, if it is there, to one that does not exist."""
        self._keys += (source, target)
        self._arguments += ("RENAME", 2, 0)

    def drop_unless_in(self, board: str, member: bytes, key: bytes) -> None:
        """Remove a key unless the member is in the sorted set."""
        self._keys += (board, key)
        self._arguments += ("DROP", 2, 1, member)

    async def apply(self, client: RankClient, guards: Mapping[str, Guard]) -> bool:
        """Do all steps if every guard holds, and tell whether they were done.

        Raises:
            redis.exceptions.RedisError: unknown whether they were done; look at the watermark.
        """
        arguments: list[Part] = [len(guards)]
        for expected in guards.values():
            arguments += expected
        done = await APPLY.call(client, [*guards, *self._keys], [*arguments, *self._arguments])
        return bool(done == 1)
