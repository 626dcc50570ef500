"""Probing: who answers at a URL, before the ring is told that an agent is there."""

from __future__ import annotations

from agent.errors import ExchangeRefused
from agent.gossip.client import Client
from agent.gossip.peers import Peers
from agent.gossip.roster import ask_roster


async def who_answers(peers: Peers, url: str) -> str:
    """The name of the agent of this ring that answers at a URL; this one's own included.

    Raises:
        ExchangeRefused: nobody does, or not as a member of this ring.
    """
    client = Client(peers.config.gossip)
    try:
        roster = await ask_roster(
            client,
            url,
            peers.secrets.current(),
            peers.config.ring.name,
            peers.me(),
            peers.next_number(),
        )
    except ExchangeRefused as error:
        if error.reason == "self" and error.proven:
            return peers.state.agent
        raise
    finally:
        await client.close()
    return roster.sender.agent
