"""The small calls between agents: what they look like in a call's body and in its reply.

confirm = []        reply = [sender, seen, boot number, boot nonce, newest inc, read to,
                             status, other url]
"""

from __future__ import annotations

from agent.crdt.document import Status
from agent.exchange import Boot, Sender
from agent.gossip.frame import (
    Frame,
    array,
    integer,
    pack,
    pack_sender,
    read_boot,
    read_sender,
    refuse,
    unpack,
)
from agent.identity import Confirmation

URL_BYTES_MAX = 1024


def pack_confirmation(me: Sender, said: Confirmation) -> bytes:
    """The payload of the reply to a confirm call."""
    return pack(
        [
            pack_sender(me),
            said.seen,
            *said.boot,
            said.newest_inc,
            said.read_to,
            -1 if said.status is None else int(said.status),
            said.other_url,
        ]
    )


def unpack_confirmation(parts: Frame) -> tuple[Sender, Confirmation]:
    """Who confirms, and what.

    Raises:
        ExchangeRefused: malformed, truncated or too_large; the field is named.
    """
    fields = array(unpack(parts), "confirmation", 8)
    sender, seen, number, nonce, newest_inc, read_to, status, url = fields
    if status not in (-1, *Status):
        refuse("malformed", f"status: {status!r} is unknown")
    if type(url) is not str or len(url) > URL_BYTES_MAX:
        refuse("malformed", "other_url: is not a short text")
    boot: Boot = read_boot((number, nonce))
    return read_sender(sender), Confirmation(
        seen=integer(seen, "seen", 0),
        boot=boot,
        newest_inc=integer(newest_inc, "newest_inc", 0),
        read_to=integer(read_to, "read_to", 0),
        status=None if status == -1 else Status(status),
        other_url=url,
    )
