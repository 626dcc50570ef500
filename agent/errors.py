"""Every error that Tallyring raises on purpose, in one tree.

    TallyringError
    |-- Refused            a request was refused; nothing was stored (definite)
    |   |-- Malformed          400  the request is not what the contract says
    |   |-- Unauthorized       401  no token, or no proof of the ring's secret
    |   |-- Forbidden          403  a valid caller who may not do this
    |   |-- NotFound           404  unknown_board, unknown_window, unknown_route
    |   |   `-- NotRanked      404  not_ranked
    |   |-- MethodNotAllowed   405  the route has other methods
    |   |-- Conflict           409  board_conflict, key_conflict, ring_conflict, removed, ...
    |   |-- Gone               410  key_expired, member_erased
    |   |-- Changed            412  what the caller goes on with is another one now
    |   |-- TooLarge           413  over a limit on size
    |   |-- UnsupportedMedia   415  a body that is neither JSON nor msgpack
    |   |-- OutOfRange         422  outside the board's limits or windows
    |   |-- RateLimited        429  too many entries of one member
    |   `-- Unavailable        503  busy, too_stale, rebuilding, rank_store_down
    |-- Indefinite         503  the write may or may not have been stored
    |   `-- NotReplicated      504  it is stored here, and no other region has confirmed it
    |-- ConfigError        the configuration can't be used; names the field
    |-- StoreError         the SQLite file can't be used
    |   |-- DamagedCell        a cell does not hold what was written to it
    |   `-- NotAdmitted        the ring does not take this agent in: removed, or its name is taken
    `-- ExchangeRefused    a peer's message was refused; nothing of it was stored

Each error says what happened to the state (`definite`: nothing was stored) and, where there is
something to do, what to do next (`hint`). `code` is stable and listed in docs/errors.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from msgspec import UNSET


class TallyringError(Exception):
    """The root of the tree; never raised itself."""


@dataclass(frozen=True, slots=True)
class EntryError:
    """Why one entry of a batch was refused. `index` counts from 0 in the request's own order."""

    index: int
    code: str
    detail: str
    hint: str = ""


class Refused(TallyringError):
    """A request was refused as a whole. Nothing was stored.

    Args:
        code: stable name of the reason, as in docs/errors.md.
        detail: one sentence that names the field and the limit.
        hint: what the caller can do next; empty where there is nothing.
        errors: for a batch, one item for each refused entry (the first ones, bounded).
    """

    status = 400
    title = "The request was refused"
    definite = True

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        hint: str = "",
        errors: tuple[EntryError, ...] = (),
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.hint = hint
        self.errors = errors
        self.retry_after_s = retry_after_s


class Malformed(Refused):
    """400: the request is not what the contract says."""

    title = "The request is malformed"

    def __init__(self, detail: str, *, hint: str = "", errors: tuple[EntryError, ...] = ()) -> None:
        super().__init__("malformed", detail, hint=hint, errors=errors)


class Unauthorized(Refused):
    """401: no token or an unknown one; on peer routes, no valid proof of the ring's secret."""

    status = 401
    title = "Authentication is required"

    def __init__(self, detail: str, *, hint: str = "") -> None:
        super().__init__("unauthorized", detail, hint=hint)


class Forbidden(Refused):
    """403: the caller is known, but may not do this."""

    status = 403
    title = "Not allowed"

    def __init__(self, detail: str, *, code: str = "forbidden", hint: str = "") -> None:
        super().__init__(code, detail, hint=hint)


class NotFound(Refused):
    """404: there is no such board, window, member on a board, or route."""

    status = 404
    title = "Not found"


class NotRanked(NotFound):
    """404: the member is not on the board.

    total: how many are. previous: its rank in the window before, where that was asked for.
    """

    def __init__(self, detail: str, total: int) -> None:
        super().__init__("not_ranked", detail)
        self.total = total
        self.previous: Any = UNSET


class MethodNotAllowed(Refused):
    """405: the route has other methods; `allow` lists them."""

    status = 405
    title = "Method not allowed"

    def __init__(self, detail: str, allow: str) -> None:
        super().__init__("method_not_allowed", detail, hint=f"allowed: {allow}")
        self.allow = allow


class Conflict(Refused):
    """409: the request contradicts what is stored."""

    status = 409
    title = "Conflict"


class Gone(Refused):
    """410: it was there, and is not any more (key_expired, member_erased)."""

    status = 410
    title = "Gone"


class Changed(Refused):
    """412: what the caller wants to go on with is not what is there now (final_changed)."""

    status = 412
    title = "It has changed"


class TooLarge(Refused):
    """413: over a limit on size; the limit is named."""

    status = 413
    title = "Too large"

    def __init__(self, detail: str, *, hint: str = "") -> None:
        super().__init__("too_large", detail, hint=hint)


class UnsupportedMedia(Refused):
    """415: the body's Content-Type is neither JSON nor msgpack."""

    status = 415
    title = "Unsupported media type"

    def __init__(self, detail: str, *, hint: str = "") -> None:
        super().__init__("unsupported_media", detail, hint=hint)


class OutOfRange(Refused):
    """422: outside the board's limits (out_of_range, grow_only, tie_budget, window_closed)."""

    status = 422
    title = "Outside the board's limits"


class RateLimited(Refused):
    """429: too many entries of one member; the limit is named."""

    status = 429
    title = "Too many entries"

    def __init__(self, detail: str, *, retry_after_s: int) -> None:
        super().__init__("rate_limited", detail, retry_after_s=retry_after_s)


class Unavailable(Refused):
    """503: not now (busy, too_stale, rebuilding, rank_store_down). Nothing was stored."""

    status = 503
    title = "Not available now"

    def __init__(self, code: str, detail: str, *, hint: str = "", retry_after_s: int = 1) -> None:
        super().__init__(code, detail, hint=hint, retry_after_s=retry_after_s)


class Indefinite(TallyringError):
    """503: the write may have been stored (the commit's outcome is unknown)."""

    status = 503
    title = "The outcome is unknown"
    definite = False
    code = "busy"

    def __init__(self, detail: str, *, hint: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint


class NotReplicated(Indefinite):
    """504: stored here; no other region has confirmed in time that it durably has it."""

    status = 504
    title = "Not replicated in time"
    code = "not_replicated"


class ConfigError(TallyringError):
    """The configuration can't be used. `field` is its dotted name, e.g. `ring.secret_file`."""

    def __init__(self, field: str, detail: str, *, hint: str = "") -> None:
        super().__init__(f"{field}: {detail}" + (f" ({hint})" if hint else ""))
        self.field = field
        self.detail = detail
        self.hint = hint


class StoreError(TallyringError):
    """The SQLite file can't be used (foreign, newer, damaged). Nothing was changed."""


class DamagedCell(StoreError):
    """A cell does not fit the fingerprint stored beside it: it was edited, or the disk decays.

    It is neither served nor joined until it is mended from the other agents.
    """

    def __init__(self, key: tuple[bytes, bytes, bytes]) -> None:
        space, member, slot = key
        board = space[1 : 1 + space[0]].decode(errors="backslashreplace") if space else ""
        name = member.decode(errors="backslashreplace")
        super().__init__(
            f"the cell of board {board!r}, member {name!r}, slot {slot.hex()} does not hold what"
            " was written to it; 'tallyring audit --repair' mends it from the other agents"
        )
        self.key = key


class NotAdmitted(StoreError):
    """The ring does not take this agent in. Nothing was changed. `hint` says what to do."""

    def __init__(self, detail: str, hint: str) -> None:
        super().__init__(f"{detail}; {hint}")
        self.detail = detail
        self.hint = hint


class ExchangeRefused(TallyringError):
    """A peer's message was refused. Nothing of it was stored and no cursor moved.

    Args:
        reason: truncated, malformed, too_large, wire_version, unauthorized, replay, other_ring,
            removed, self, challenge, stale_boot, fork, unreachable, busy or refused.
        detail: one sentence.
        about: (agent, incarnation, url) of whom it is about, where that is known.
        proven: whether an agent of the ring has said so, and not whoever answered.
    """

    def __init__(
        self,
        reason: str,
        detail: str,
        *,
        about: tuple[str, int, str] = ("", 0, ""),
        proven: bool = False,
    ) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.about = about
        self.proven = proven


def words_of(error: BaseException) -> str:
    """What an error says; of one without a text, as most time-outs are, what its type tells."""
    name = type(error).__name__
    timed_out = name.endswith("TimeoutError")  # also those of libraries, which are no TimeoutError
    return str(error).strip() or ("no answer in time" if timed_out else name)
