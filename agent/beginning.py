"""How an agent begins: as who it was, where everything agrees with that; else as somebody new."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Callable

import structlog
from redis.exceptions import RedisError

from agent.config import Config
from agent.crdt import incarnation
from agent.errors import StoreError
from agent.exchange import Boot, Sender
from agent.gossip.joining import confirmations
from agent.gossip.secrets import Secrets
from agent.identity import Evidence, boot_heard_of, newest_inc, was_set_back, why_burnt
from agent.projection.connection import RankClient
from agent.projection.sentinel import read_sentinel, write_sentinel
from agent.store.identity import Identity
from agent.store.schema import damage
from agent.store.sqlite import SqliteStore
from agent.store.token import Token, file_id, read_token, write_token

log = structlog.get_logger("tallyring.node")

SENTINEL_S = 2.0


def mint_identity(now_ms: int, newest_inc: int) -> tuple[int, int]:
    """(a new incarnation, a new log id); the incarnation is greater than `newest_inc`."""
    inc = incarnation.mint(now_ms, secrets.randbits(incarnation.RANDOM_BITS), newest_inc)
    return inc, _random_id()


async def begin(
    config: Config,
    store: SqliteStore,
    ring_secrets: Secrets,
    client: RankClient,
    identity_above: Callable[[int], Identity],
) -> None:
    """Decide as who this process goes on, and count it: in the file, the token, and Redis (ID5).

    Args:
        identity_above: an incarnation -> a fresh identity, its incarnation above that one.

    Raises:
        NotAdmitted: the ring does not take this agent in.
        StoreError: the token can't be written.
    """
    folder, life, ring = store.path.parent, store.life, store.state().ring
    boot = Boot(life.boot + 1, _random_id())
    me = Sender(config.name, life.inc, life.log, boot)
    evidence = Evidence(
        life=life,
        file=file_id(store.path),
        token=read_token(folder),
        sentinel=await _sentinel(client, config.name),
        boot=boot,
        answers=await confirmations(config, ring_secrets, ring, me),
    )
    try:
        _count(store, evidence, identity_above)
    except sqlite3.Error as error:
        raise StoreError(f"{store.path}: can't be written: {damage(error)}") from error
    life = store.life
    try:
        write_token(folder, Token(life.log, life.boot, evidence.file))
    except OSError as error:
        raise StoreError(f"{folder}: the identity token can't be written: {error}") from error
    try:
        async with asyncio.timeout(SENTINEL_S):
            await write_sentinel(client, config.name, life.log, life.boot)
    except (RedisError, OSError, TimeoutError) as error:
        log.warning("the sentinel in Redis was not written", why=str(error))


def _count(
    store: SqliteStore, evidence: Evidence, identity_above: Callable[[int], Identity]
) -> None:
    life, nonce, heard_of = evidence.life, evidence.boot.nonce, boot_heard_of(evidence)
    if life.boot == 0:
        # What a file holds before its first process is in every copy of it, and comes back when a
        # disk is put back to then: so the process itself brings who it is.
        new = identity_above(max(life.inc, newest_inc(evidence)))
        store.begin(nonce, new.log, above=heard_of, new_inc=new.inc)
        return
    why = why_burnt(evidence)
    if why:
        log.warning("this agent goes on under a new identity", why=why)
    new_log = _random_id() if why else None
    store.begin(nonce, new_log, why, heard_of, incomplete=was_set_back(evidence))


async def _sentinel(client: RankClient, agent: str) -> tuple[int, int] | None:
    try:
        async with asyncio.timeout(SENTINEL_S):
            return await read_sentinel(client, agent)
    except (RedisError, OSError, TimeoutError):
        return None  # it is evidence against an identity only where it says something else


def _random_id() -> int:
    return secrets.randbits(62) + 1
