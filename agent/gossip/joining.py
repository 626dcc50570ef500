"""Before an agent begins: what the other members know of it, and whether the ring takes it in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import count
from typing import TypeAlias

from agent.config import Config
from agent.errors import ExchangeRefused, NotAdmitted
from agent.exchange import Sender
from agent.gossip.client import Client
from agent.gossip.frame import Call, Kind
from agent.gossip.link import SUSPECT_S, Link
from agent.gossip.peers import RESEED
from agent.gossip.secrets import Secrets
from agent.identity import Confirmation, removed_by
from agent.membership import Ring

TWIN_PATIENCE_S = SUSPECT_S + 1.0  # until a process that has just ended is not "lately heard" more
TWIN_ASK_AGAIN_S = 0.5
Answers: TypeAlias = dict[str, Confirmation | str]
_numbers = count(1)  # below those of `Peers`


async def confirmations(config: Config, secrets: Secrets, ring: Ring, me: Sender) -> Answers:
    """Ask every other member what it knows of me; its older processes of mine are then fenced off.

    A new agent, which knows no members yet, asks its seeds. Whoever does not answer in
    `ring.confirm_s` is in the answer with the reason.

    Raises:
        NotAdmitted: this agent was removed, or another one of its name is alive.
    """
    targets = {m.url: m.name for m in ring.active() if m.name != me.agent}
    if not targets:
        targets = {url: url for seed in config.ring.seeds if (url := seed.rstrip("/"))}
    mine = ring.members.get(me.agent)
    if mine is not None and mine.url != config.advertise:
        targets.setdefault(mine.url, "")  # nobody should answer there any more
    targets.pop(config.advertise, None)
    client = Client(config.gossip)
    try:
        loop = asyncio.get_running_loop()
        patience_ends = loop.time() + TWIN_PATIENCE_S
        while True:
            answers = await _ask_all(client, config, secrets, targets, me)
            twin = _twin(answers.values(), config.advertise)
            if not twin:
                break
            if loop.time() > patience_ends:
                raise NotAdmitted(
                    f"another agent called {me.agent!r} is running at {twin}: names are unique in a"
                    " ring",
                    "stop it first if this is to take its place; else give this one a name and a"
                    " data_dir of its own",
                )
            await asyncio.sleep(TWIN_ASK_AGAIN_S)
    finally:
        await client.close()
    answers.pop("", None)
    member = removed_by(answers)
    if member:
        raise NotAdmitted(
            f"agent {me.agent!r} was removed from ring {config.ring.name!r}, says {member}", RESEED
        )
    return answers


async def _ask_all(
    client: Client, config: Config, secrets: Secrets, targets: dict[str, str], me: Sender
) -> Answers:
    async with asyncio.TaskGroup() as tasks:
        asked = {
            name: tasks.create_task(_ask(client, config, secrets, url, name, me))
            for url, name in targets.items()
        }
    answers: Answers = {}
    for name, task in asked.items():
        said = task.result()
        if isinstance(said, NotAdmitted):
            raise said
        answers[name] = said
    return answers


async def _ask(
    client: Client, config: Config, secrets: Secrets, url: str, name: str, me: Sender
) -> Confirmation | str | NotAdmitted:
    """One member's confirmation, or why there is none; NotAdmitted where my own name answers."""
    link = Link(url, name)
    call = Call(Kind.CONFIRM, config.ring.name, next(_numbers), me, [])
    try:
        async with asyncio.timeout(config.ring.confirm_s):
            sender, said = await client.confirm(link, secrets.current(), call)
    except TimeoutError:
        return f"did not answer within {config.ring.confirm_s:g} s"
    except ExchangeRefused as error:
        if error.proven and error.reason == "fork" and error.about[0] == me.agent:
            return NotAdmitted(
                error.detail, "stop the other one first if this is to take its place"
            )
        return f"can't be asked: {error}"
    if name not in ("", url, sender.agent):
        return f"is agent {sender.agent!r} now"
    return said


def _twin(answers: Iterable[Confirmation | str], advertise: str) -> str:
    """Where another process of my name was heard from lately, if not where I am."""
    for answer in answers:
        if isinstance(answer, Confirmation) and answer.other_url not in ("", advertise):
            return answer.other_url
    return ""
