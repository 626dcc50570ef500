"""A walk over all cells, page by page: by itself, or side by side with a peer."""

from __future__ import annotations

from agent.gossip.link import Link
from agent.gossip.ranges import CELLS_MAX, Ranges
from agent.store.readers import Readers
from agent.store.scrub import START, Findings, Page, Place, compare, end_of, read_page


class Walk:
    """One pass. It changes nothing.

    Args:
        readers: where pages are read.
        ranges: how a peer is asked.
        link: the peer; None: only the cells here are looked at.
    """

    def __init__(self, readers: Readers, ranges: Ranges, link: Link | None) -> None:
        self._readers = readers
        self._ranges = ranges
        self.link = link
        self.done = False
        self.cells = 0
        self._space, self._after = b"", START
        self._last: tuple[bytes, Place, Place | None] = (b"", START, None)

    async def step(self) -> Findings:
        """Look at the next page. Call it until `done`.

        Raises:
            ExchangeRefused: the peer does not answer; the walk stands where it stood.
            StoreError: the file can't be read.
        """
        link, space, after = self.link, self._space, self._after
        log = 0 if link is None else link.log
        page: Page = await self._readers.read(lambda found: read_page(found, space, after, log))
        answer = None if link is None else await self._ranges.compare(link, page)
        end = page.upto if answer is None else end_of(page, answer)
        self._last = (space, after, end)
        self.cells += len(page.cells)
        if end is not None:
            self._after = end
        else:
            spaces = {page.following, None if answer is None else answer.following} - {None}
            self.done = not spaces
            if not self.done:
                self._space, self._after = min(space for space in spaces if space), START
        return compare(page, answer)

    async def look_again(self) -> Findings:
        """Look at the last page again, after something was done about it.

        Raises:
            ExchangeRefused, StoreError: as `step`.
        """
        link, (space, after, upto) = self.link, self._last
        log = 0 if link is None else link.log
        page: Page = await self._readers.read(
            lambda found: read_page(found, space, after, log, upto=upto, limit=CELLS_MAX)
        )
        return compare(page, None if link is None else await self._ranges.compare(link, page))
