"""What a restore would do, before it is done: whose backup it is, and what the ring knows beyond.

The other members are asked as an agent that has not begun asks them; nothing of it is stored there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent.beginning import mint_identity
from agent.config import Config
from agent.crdt.space import RING_SPACE
from agent.errors import ExchangeRefused, StoreError
from agent.exchange import VersionVector
from agent.gossip.bootstrap import Asking
from agent.gossip.link import Link
from agent.gossip.secrets import Secrets
from agent.gossip.snapshots import Offer
from agent.membership import Ring
from agent.store.archive import Backup, verify
from agent.store.backup import opened, where_aside
from agent.store.identity import Identity
from agent.store.snapshot import SqliteSnapshot

SCAN_ROWS = 2_000


@dataclass(frozen=True, slots=True)
class OnlyHere:
    """What the file that would be replaced has and nobody else that could be asked.

    commits, cells: of whichever incarnation.
    """

    commits: int
    cells: int


@dataclass(slots=True)
class Outlook:
    """What a restore would do.

    newest_inc: the newest incarnation of this agent that is known: the new one is above it.
    moved_to: where the present database would go; None where there is none.
    asked: by member's URL, how many cells it has, or why it could not be asked.
    removed: who says that this agent was removed from the ring; empty if nobody does.
    beyond: by region, how many commits the ring knows that the backup has not.
    cells_beyond: how many cells more than the backup the largest member has; None if unknown.
    only_here: see OnlyHere; None without a database, or without a member that could be asked.
    unreadable: why the present database can't be read; empty if it can, or there is none.
    """

    backup: Backup
    newest_inc: int
    moved_to: Path | None
    asked: dict[str, int | str] = field(default_factory=dict)
    removed: str = ""
    beyond: dict[str, int] = field(default_factory=dict)
    cells_beyond: int | None = None
    only_here: OnlyHere | None = None
    unreadable: str = ""

    @property
    def to_import(self) -> bool:
        """Whether the file that would be moved aside has something that is to be imported."""
        return self.only_here is not None and bool(self.only_here.commits or self.only_here.cells)

    def document(self) -> dict[str, Any]:
        """As JSON shows it."""
        said = asdict(self)
        said["backup"]["inc"] = f"{self.backup.inc:x}"
        said["backup"]["log"] = f"{self.backup.log:x}"
        said["newest_inc"] = f"{self.newest_inc:x}"
        said["moved_to"] = None if self.moved_to is None else str(self.moved_to)
        return said


def fresh_identity(config: Config, above: int) -> Identity:
    """Who an agent is in a new file: with an incarnation above another one."""
    inc, log = mint_identity(time.time_ns() // 1_000_000 + config.agent.clock_shift_ms, above)
    return Identity(config.ring.name, config.name, config.agent.region, inc, log)


def look_ahead(config: Config, path: Path, database: Path, member_url: str | None) -> Outlook:
    """What `tallyring restore` would do with a backup. Nothing is changed.

    Args:
        member_url: which member to ask; None: all that the backup names, and the seeds.

    Raises:
        StoreError: the backup can't be used, or is another ring's.
        ConfigError: the ring's secret can't be read.
    """
    verify(path)  # a database can be opened as well, but nothing is restored from one
    with opened(path) as (backup, snapshot):
        vv, ring = snapshot.vv, Ring().with_rows(snapshot.rows_in(RING_SPACE))
    if backup.ring != config.ring.name:
        raise StoreError(
            f"{path}: is of ring {backup.ring!r}, this agent belongs to {config.ring.name!r}"
        )
    mine = backup.inc if backup.agent == config.name else 0
    outlook = Outlook(
        backup=backup,
        newest_inc=max(ring.newest_inc(config.name), mine),
        moved_to=where_aside(database) if database.exists() else None,
    )
    urls = [member_url.rstrip("/")] if member_url else _urls(config, ring)
    offers = asyncio.run(_ask(config, urls, outlook))
    _compare(outlook, offers, vv, ring)
    if outlook.moved_to is not None:
        try:
            with opened(database) as (_, present):
                if offers:
                    outlook.only_here = _only_here(present, [vv, *(offer.vv for offer in offers)])
        except StoreError as error:
            outlook.unreadable = str(error)
    return outlook


def _urls(config: Config, ring: Ring) -> list[str]:
    members = [member.url for member in ring.active() if member.name != config.name]
    seeds = [seed.rstrip("/") for seed in config.ring.seeds]
    return [url for url in dict.fromkeys(members + seeds) if url != config.advertise]


async def _ask(config: Config, urls: list[str], outlook: Outlook) -> list[Offer]:
    """What the members have; why one could not be asked is noted."""
    secrets = Secrets(config.ring.secret_file, time.monotonic)
    asking = Asking(config, secrets, config.name, fresh_identity(config, outlook.newest_inc).inc)
    offers = []
    try:
        for url in urls:
            try:
                offer = await asking.look(Link(url))
            except ExchangeRefused as error:
                outlook.asked[url] = str(error)
                if error.reason == "removed" and error.proven:
                    outlook.removed = url
                continue
            outlook.asked[url] = offer.cells
            offers.append(offer)
    finally:
        await asking.close()
    return offers


def _compare(outlook: Outlook, offers: list[Offer], vv: VersionVector, ring: Ring) -> None:
    """Note what the ring knows beyond the backup, by the region that wrote it."""
    known = _joined([offer.vv for offer in offers])
    for inc, seq in known.items():
        missing = seq - vv.get(inc, 0)
        if missing > 0:
            member = ring.members.get(ring.agents.get(inc, ""))
            region = member.region if member is not None else "not in the backup"
            outlook.beyond[region] = outlook.beyond.get(region, 0) + missing
    if offers:
        most = max(offer.cells for offer in offers)
        outlook.cells_beyond = max(0, most - outlook.backup.cells)


def _only_here(present: SqliteSnapshot, others: list[VersionVector]) -> OnlyHere:
    known = _joined(others)
    commits = sum(max(0, seq - known.get(inc, 0)) for inc, seq in present.vv.items())
    cells = 0
    for space in present.spaces():
        member = slot = b""
        while rows := present.cells_after(space, member, slot, SCAN_ROWS):
            cells += sum(row.seq > known.get(row.inc, 0) for row, _ in rows)
            member, slot = rows[-1][0].member, rows[-1][0].slot
    return OnlyHere(commits, cells)


def _joined(vectors: list[VersionVector]) -> Mapping[int, int]:
    joined: dict[int, int] = {}
    for vector in vectors:
        for inc, seq in vector.items():
            joined[inc] = max(seq, joined.get(inc, 0))
    return joined
