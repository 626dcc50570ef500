"""Channels: who listens to which top of a board, and what they are told.

One reader for each board, window and limit, however many listen: it reads when the projection has
moved, and tells only what differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from aiohttp import web

from agent.api.bodies import JSON, encode
from agent.api.problem import problem_of
from agent.errors import Refused, StoreError, TallyringError, Unavailable
from agent.limits import LISTENERS_MAX, LIVE_BOARDS_MAX
from agent.projection.projector import Projector

READ_EVERY_S = 0.2  # a top that changes all the time is told so often
LOOK_EVERY_S = 1.0  # where another agent of the region projects, nobody tells this one
IDLE_S = 15.0  # a look, and a sign of life, where nothing changes: proxies cut silent connections

Look: TypeAlias = Callable[[], Awaitable[tuple[str, bytes]]]


@dataclass(slots=True, eq=False)
class Channel:
    """What those who listen to one top are told.

    id: of the newest state; empty before there is one. event: its bytes.
    changed: set when there is something newer, and then another one.
    over: the last event; nothing follows it.
    """

    board: str
    window: str | None
    limit: int
    listeners: int = 0
    id: str = ""
    event: bytes = b""
    stale: bytes = b""
    over: bytes = b""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None

    def show(self, id_: str, page: bytes) -> None:
        """There is this to show now."""
        if id_ != self.id or self.stale:
            self.id, self.stale = id_, b""
            self.event = event("top", page, id_)
            self.tell()

    def trouble(self, error: TallyringError) -> None:
        """It can't be read now."""
        if not self.stale:
            self.stale = event("stale", encode(problem_of(error), JSON))
            self.tell()

    def tell(self) -> None:
        """Wake all who listen."""
        self.changed.set()
        self.changed = asyncio.Event()


class Live:
    """All tops that somebody listens to. Its readers run while `run` does.

    keep: told of a connection that is in use, so that it is not closed for its silence.
    sent: events. dropped: listeners that took nothing any more.
    """

    def __init__(self) -> None:
        self._channels: dict[tuple[str, str | None, int], Channel] = {}
        self._group: asyncio.TaskGroup | None = None
        self.keep: Callable[[web.RequestHandler], None] = lambda _handler: None
        self.listeners = 0
        self.sent = 0
        self.dropped = 0

    @property
    def channels(self) -> int:
        """How many different tops are listened to."""
        return len(self._channels)

    async def run(self) -> None:
        """Read for those who listen, until it is cancelled: then all streams end."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                await asyncio.Event().wait()
        finally:
            self._group = None
            for channel in self._channels.values():
                stopping = Unavailable("busy", "this agent is stopping", hint="connect again")
                channel.over = event("end", encode(problem_of(stopping), JSON))
                channel.tell()

    def join(
        self, board: str, window: str | None, limit: int, projector: Projector, look: Look
    ) -> Channel:
        """Begin to listen.

        Args:
            projector: fills what is read. look: reads the top; (its id, its bytes).

        Raises:
            Unavailable: (`busy`) the agent is stopping, or too many listen.
        """
        if self._group is None:
            raise Unavailable("busy", "this agent is stopping", hint="try again in a second")
        if self.listeners >= LISTENERS_MAX:
            raise Unavailable("busy", f"live: {LISTENERS_MAX} listen, which is the limit")
        key = (board, window, limit)
        channel = self._channels.get(key)
        if channel is None:
            if len(self._channels) >= LIVE_BOARDS_MAX:
                detail = (
                    f"live: {LIVE_BOARDS_MAX} different tops are listened to, which is the limit"
                )
                raise Unavailable("busy", detail)
            channel = self._channels[key] = Channel(board, window, limit)
            channel.task = self._group.create_task(self._read(channel, projector, look))
        channel.listeners += 1
        self.listeners += 1
        return channel

    def leave(self, channel: Channel) -> None:
        """Listen no longer; the last one ends the reader."""
        channel.listeners -= 1
        self.listeners -= 1
        if not channel.listeners:
            key = (channel.board, channel.window, channel.limit)
            if self._channels.get(key) is channel:
                del self._channels[key]
            if channel.task is not None:
                channel.task.cancel()

    async def _read(self, channel: Channel, projector: Projector, look: Look) -> None:
        """Read a top whenever it may have changed, and tell where it has."""
        while not channel.over:
            moved = projector.moved
            try:
                channel.show(*await look())
                wait_s = IDLE_S if projector.follows else LOOK_EVERY_S
            except (Unavailable, StoreError) as error:
                channel.trouble(error)
                wait_s = LOOK_EVERY_S
            except Refused as error:  # the board is no more, say
                channel.over = event("end", encode(problem_of(error), JSON))
                channel.tell()
                key = (channel.board, channel.window, channel.limit)
                if self._channels.get(key) is channel:  # whoever comes now begins anew
                    del self._channels[key]
                return
            await asyncio.sleep(READ_EVERY_S)
            try:
                async with asyncio.timeout(wait_s):
                    await moved.wait()
            except TimeoutError:
                pass


def event(name: str, data: bytes, id_: str = "") -> bytes:
    """An event as it is sent."""
    head = f"id: {id_}\n" if id_ else ""
    return f"{head}event: {name}\ndata: ".encode() + data + b"\n\n"
