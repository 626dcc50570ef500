"""Overriding: an operator begins the next version of a window's final, without some agents.

Nothing is certified by this word alone: the agents that are left still have to agree on the same
standings. What is decided here is only for whom the window does not wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import UNSET

from agent.api.bans import BY_CHARACTERS_MAX, checked_reason
from agent.api.bodies import Decoder
from agent.api.final_answers import FinalAgent, OverrideAnswer
from agent.api.final_choosing import LACKS, Chosen, choose, is_closed, window_stage
from agent.api.route import Call
from agent.boards.entry import rfc3339
from agent.boards.final_waits import Lack, stage_of, waits_of
from agent.boards.finals import OverrideFinal, certifiable, override_body
from agent.boards.windows import is_sliding
from agent.crdt.slot import Kind
from agent.errors import Conflict, NotFound, OutOfRange, Refused
from agent.gossip.link import PeerStatus

WITHOUT_MAX = 64


class OverrideRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Regions or agents that are left out, and why. `revise`: of a window that has a final."""

    without: Annotated[list[str], msgspec.Meta(max_length=WITHOUT_MAX)] = []
    reason: str = ""
    revise: bool = False


_request: Decoder[OverrideRequest] = Decoder(OverrideRequest)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A version that would begin: without whom of which members, and for whom it would wait."""

    version: int
    members: dict[str, str]
    without: tuple[str, ...]
    reason: str
    revise: bool
    waits_for: tuple[str, ...]


async def certify_window(call: Call) -> web.Response:
    """POST /v1/boards/{board}/windows/{window}/certify."""
    request = OverrideRequest()
    if call.request.can_read_body:
        request = _request.decode(*await call.body())
    chosen = await choose(call)
    plan = _plan(call, chosen, request)
    operation = OverrideFinal(
        chosen.space,
        plan.version,
        plan.without,
        plan.reason,
        call.caller.name[:BY_CHARACTERS_MAX],
    )
    override_body(operation.without, operation.reason, operation.by)  # refused before a dry run
    dry_run: bool = call.query["dry_run"]
    answer = _answer(call, chosen, plan, dry_run=dry_run)
    try:
        _check(call, chosen, plan)
    except Refused as refused:
        if not dry_run:
            raise
        answer.refuses = refused.detail if not refused.hint else f"{refused.detail}; {refused.hint}"
        return call.answer(answer)
    if dry_run:
        answer.refuses = None
    else:
        await call.services.queue.submit(operation)
    return call.answer(answer)


def _plan(call: Call, chosen: Chosen, request: OverrideRequest) -> _Plan:
    state, final = call.services.queue.state, chosen.final
    members = {member.name: member.region for member in state.ring.active()}
    without = _named(request.without, members)
    newest = max((version for version, _ in final.certificates), default=0)
    left = [name for name in sorted(members) if name not in without]
    # All say everything anew under its number; but first all must have closed the window.
    unclosed = [name for name in left if not is_closed(state, chosen, name)]
    return _Plan(
        version=max(final.version, newest) + 1,
        members=members,
        without=without,
        reason=checked_reason(request.reason),
        revise=request.revise,
        waits_for=tuple(unclosed or left),
    )


def _named(without: list[str], members: dict[str, str]) -> tuple[str, ...]:
    """The agents that are meant by names of agents or regions.

    Raises:
        NotFound: (`unknown_agent`) the ring has no member of that name or in that region.
    """
    found: set[str] = set()
    for name in without:
        its = {agent for agent, region in members.items() if name in (agent, region)}
        if not its:
            raise NotFound(
                "unknown_agent",
                f"without: {name[:80]!r} is neither an agent nor a region of the ring's members",
                hint="'tallyring ring status' lists them; an agent that was removed is not waited"
                " for anyway",
            )
        found |= its
    return tuple(sorted(found))


def _check(call: Call, chosen: Chosen, plan: _Plan) -> None:
    """Check that the version may begin.

    Raises:
        Conflict: (`final_conflict`) there is nothing to go on without, or nothing to make again.
        OutOfRange: (`not_excludable`) nobody who could say so would be left.
    """
    state, placed = call.services.queue.state, chosen.placed
    final, told = chosen.final, chosen.final.in_force
    if placed is None or state.catalog.placed(chosen.space) is None or not certifiable(placed):
        raise _conflict(f"{chosen.window} gets no final, or none any more")
    if is_sliding(placed.window.name) or not is_closed(state, chosen, state.agent):
        closes = rfc3339(placed.window.end_ms + placed.counted.series.grace_ms)
        raise _conflict(f"{chosen.window} is not closed here: it takes entries until {closes}")
    if state.marks.collects(chosen.space):
        raise _conflict(f"the entries of {chosen.window} are kept no longer")
    if chosen.empty:
        raise _conflict(f"nothing was counted in {chosen.window} here")
    if state.agent in plan.without:
        raise OutOfRange(
            "not_excludable",
            f"without: {state.agent!r} is the agent that is asked",
            hint="ask one that stays in",
        )
    if told is not None and told.version >= final.version:
        if not plan.revise:
            raise _conflict(
                f"{chosen.window} is certified as version {told.version}",
                "with revise, a version begins that has what came late",
            )
        return
    override = final.override
    out = set() if override is None else set(override.without) & set(plan.members)
    if set(plan.without) < out:
        return  # somebody who was left out is taken in again
    if not plan.without:
        raise _conflict(
            f"{chosen.window} is not certified yet, and nobody is to be left out",
            "name in `without` the region or the agent that is down",
        )
    if override is not None and set(override.without) == set(plan.without):
        raise _conflict(f"version {override.version} was begun without them already")
    waits = waits_of(final, plan.members, lambda name: is_closed(state, chosen, name))
    if waits.lack == Lack.CERTIFY or not set(waits.agents) & set(plan.without):
        names = ", ".join(waits.agents)
        raise _conflict(
            f"{chosen.window} does not wait for {', '.join(plan.without)}",
            f"it waits for {names}: {LACKS[waits.lack]}",
        )


def _conflict(detail: str, hint: str = "") -> Conflict:
    return Conflict("final_conflict", detail, hint=hint)


def _answer(call: Call, chosen: Chosen, plan: _Plan, *, dry_run: bool) -> OverrideAnswer:
    contacts = {peer.name: peer for peer in call.services.peers.status()}
    agents = [
        _agent(call, chosen, plan, name, region, contacts.get(name))
        for name, region in sorted(plan.members.items())
    ]
    return OverrideAnswer(
        board=chosen.board.name,
        window=chosen.window,
        version=plan.version,
        dry_run=dry_run,
        without=list(plan.without),
        reason=plan.reason,
        waits_for=[its.agent for its in agents if its.waited_for],
        says=_says(call, chosen, plan, agents),
        agents=agents,
        refuses=UNSET,
    )


def _agent(
    call: Call, chosen: Chosen, plan: _Plan, name: str, region: str, contact: PeerStatus | None
) -> FinalAgent:
    services, final = call.services, chosen.final
    state = services.queue.state
    mine, said = (final.said(Kind.DIGEST, its) for its in (state.agent, name))
    me = name == state.agent
    as_of = services.now_ms() if me and state.complete else state.times.get(name)
    reached = None if contact is None else contact.last_success_ms
    stage = stage_of(final, name, closed=is_closed(state, chosen, name))
    return FinalAgent(
        agent=name,
        region=region,
        state=stage,
        agrees=None if mine is None or said is None else mine == said,
        without=name in plan.without,
        waited_for=name in plan.waits_for,
        contact=None if contact is None or me else contact.state,
        last_exchange=None if reached is None else rfc3339(reached),
        as_of=None if as_of is None else rfc3339(as_of),
    )


def _says(call: Call, chosen: Chosen, plan: _Plan, agents: list[FinalAgent]) -> list[str]:
    services = call.services
    now_ms = services.board_now_ms()
    stage = window_stage(services.queue.state, chosen.placed, chosen.final, now_ms)
    begins = "would begin" if call.query["dry_run"] else "begins"
    left = ", ".join(name for name in plan.members if name not in plan.without) or "nobody"
    found = [
        f"{chosen.window} is {stage} here",
        f"version {plan.version} {begins}: {left} must agree",
    ]
    for its in agents:
        if its.without:
            upto = (
                "nothing that it wrote" if its.as_of is None else f"what it wrote up to {its.as_of}"
            )
            found.append(
                f"{its.agent} is left out: the final has {upto}, as far as the others have it; what"
                " it took later is listed as late once it is back"
            )
        elif its.waited_for and its.contact == "down":
            found.append(f"{its.agent} is needed, and is down")
    told = chosen.final.in_force
    if told is not None:
        found.append(
            f"version {told.version} stays in force until version {plan.version} is certified"
        )
    return found
