"""Whether an agent may go on as who it was: the rules ID2 and ID3 of docs/protocol.md. Pure.

An incarnation's slots must never go backwards, and its numbers never be used twice. Whatever a
crash, a restored file, a rolled back disk or a copied folder did, it shows in one of these: the
file's own mark of a clean end, the token beside it, the sentinel in the region's Redis, or what the
other members know. To mint a new incarnation is always safe: it costs one more slot for each key
that is touched later. So whatever does not agree, or can't be asked, mints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.crdt.document import Status
from agent.exchange import Boot
from agent.store.identity import Life
from agent.store.token import Token

_AGO = "(at an earlier start)"


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What one member knows of an agent that asks to go on as an incarnation.

    seen: the greatest commit of that incarnation that it holds or claims.
    boot: the newest process of it that the member had heard of before it was asked.
    newest_inc: the newest incarnation of that agent's name; 0 where it knows none.
    read_to: how far it has read that agent's log; 0 where it has not.
    status: that agent's status in the ring; None where it does not know it.
    other_url: where another process of that name was heard from within the last seconds; or empty.
    """

    seen: int
    boot: Boot
    newest_inc: int
    read_to: int
    status: Status | None
    other_url: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that the decision is made from.

    life: what the file says.
    file: which file it is.
    token: what lies beside it, if anything does.
    sentinel: (log, boot) in the region's Redis; None where it can't be asked or holds nothing.
    boot: the process that asks: its number is one above the file's.
    answers: by member, its confirmation, or why there is none.
    """

    life: Life
    file: str
    token: Token | None
    sentinel: tuple[int, int] | None
    boot: Boot
    answers: Mapping[str, Confirmation | str]


def why_burnt(evidence: Evidence) -> str:
    """Why the file's incarnation and log may not go on; empty if they may."""
    life, token = evidence.life, evidence.token
    if life.boot == 0:  # a new file: nobody has ever written as its incarnation
        newer = [a for a in evidence.answers.values() if not isinstance(a, str)]
        behind = any(answer.newest_inc > life.inc for answer in newer)
        return "the clock was behind when it was minted" if behind else ""
    if life.burnt:
        return life.burnt if _AGO in life.burnt else f"{life.burnt} {_AGO}"
    if not life.clean:
        return "the last process did not end cleanly"
    if token is None:
        return "there is no identity token beside the database"
    if (token.log, token.boot) != (life.log, life.boot):
        return "the database is not the one that the identity token was written for"
    if token.file != evidence.file:
        return "the database is a copy"
    if evidence.sentinel is None and not evidence.answers:
        return "nobody is there to confirm it: no other member, and no sentinel in Redis"
    if evidence.sentinel is not None and evidence.sentinel != (life.log, life.boot):
        return "the region's Redis has seen another process of this agent last"
    for name, answer in sorted(evidence.answers.items()):
        why = answer if isinstance(answer, str) else _why_not(answer, evidence)
        if why:
            return f"{name}: {why}"
    return ""


def _why_not(answer: Confirmation, evidence: Evidence) -> str:
    life = evidence.life
    if answer.seen > life.seq:
        return f"holds its commit {answer.seen}, this file ends with {life.seq}"
    if answer.read_to > life.lsn:
        return f"has read its log to {answer.read_to}, this file ends with {life.lsn}"
    if answer.boot.number > life.boot and answer.boot != evidence.boot:
        return f"has heard of boot {answer.boot.number}, this file ends with {life.boot}"
    if answer.boot.number == life.boot and answer.boot.nonce not in (0, life.nonce):
        return f"has heard of another process with boot {life.boot}"
    if answer.newest_inc > life.inc:
        return "knows a newer incarnation of this agent"
    return ""


def boot_heard_of(evidence: Evidence) -> int:
    """The greatest boot number of this incarnation that a member has heard of, beside this one."""
    answers = [answer for answer in evidence.answers.values() if not isinstance(answer, str)]
    return max((a.boot.number for a in answers if a.boot != evidence.boot), default=0)


def newest_inc(evidence: Evidence) -> int:
    """The newest incarnation of this agent's name that a member knows; 0 where none does."""
    answers = [answer for answer in evidence.answers.values() if not isinstance(answer, str)]
    return max((answer.newest_inc for answer in answers), default=0)


def was_set_back(evidence: Evidence) -> bool:
    """Whether something shows that this file lacks what its agent has acknowledged.

    Such an agent does not claim to hold its own region's past until it has read all other logs. A
    crash alone takes nothing that was acknowledged, and silence shows nothing.
    """
    life, token, sentinel = evidence.life, evidence.token, evidence.sentinel
    if life.boot == 0:
        return False  # a new file claims nothing as it is
    known = [answer for answer in evidence.answers.values() if not isinstance(answer, str)]
    if any(_is_ahead(answer, evidence) for answer in known):
        return True
    return (token is not None and token.log == life.log and token.boot > life.boot) or (
        sentinel is not None and sentinel[0] == life.log and sentinel[1] > life.boot
    )


def _is_ahead(answer: Confirmation, evidence: Evidence) -> bool:
    life = evidence.life
    later = answer.boot.number > life.boot and answer.boot != evidence.boot
    return answer.seen > life.seq or answer.read_to > life.lsn or later


def removed_by(answers: Mapping[str, Confirmation | str]) -> str:
    """The member that says that this agent was removed from the ring; empty if none does."""
    for name, answer in sorted(answers.items()):
        if isinstance(answer, Confirmation) and answer.status == Status.REMOVED:
            return name
    return ""
