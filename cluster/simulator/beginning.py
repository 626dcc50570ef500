"""How a simulated process begins: evidence, decision, count, as agent/beginning.py does it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from agent.exchange import Boot, Sender
from agent.identity import Confirmation, Evidence, boot_heard_of, removed_by
from agent.membership import Ring
from agent.store.token import Token
from cluster.simulator.agent import Refusal
from cluster.simulator.disk import Disk

Ask = Callable[[int, Sender], Confirmation | Refusal | None]
"""(a place, who asks) -> what is answered there; None where nothing is."""


def confirmations(
    me: Sender, ring: Ring, seeds: Iterable[int], place: int, ask: Ask
) -> tuple[dict[str, Confirmation | str], str]:
    """(what each other member knows of me, why I may not begin; empty if I may)."""
    targets = {_place(m.url): m.name for m in ring.active() if m.name != me.agent}
    if not targets:
        targets = {seed: str(seed) for seed in seeds}
    mine = ring.members.get(me.agent)
    if mine is not None:
        targets.setdefault(_place(mine.url), "")
    targets.pop(place, None)
    answers: dict[str, Confirmation | str] = {}
    for target, name in targets.items():
        said = ask(target, me)
        match said:
            case None:
                answers[name] = "did not answer"
            case Refusal(reason="fork", agent=me.agent):
                return {}, "twin"
            case Refusal(reason):
                answers[name] = reason
            case Confirmation(other_url=url) if url not in ("", f"sim://{place}"):
                return {}, "twin"
            case Confirmation():
                answers[name] = said
    answers.pop("", None)
    return answers, "removed" if removed_by(answers) else ""


def begin(
    disk: Disk,
    boot: Boot,
    sentinels: dict[str, tuple[int, int]],
    redis: str,
    answers: Mapping[str, Confirmation | str],
    new_log: int,
    decide: Callable[[Evidence], tuple[str, bool]],
) -> str:
    """Count the process in the file, the token and Redis; returns why it can't go on as it was."""
    evidence = Evidence(
        life=disk.life,
        file=disk.file,
        token=disk.token,
        sentinel=sentinels.get(redis),
        boot=boot,
        answers=answers,
    )
    why, renews = decide(evidence)
    back = bool(why) and was_set_back(evidence)
    disk.begin(boot.nonce, new_log if renews else None, why, boot_heard_of(evidence))
    disk.begun(incomplete=back)
    life = disk.life
    disk.token = Token(life.log, life.boot, disk.file)
    sentinels[redis] = (life.log, life.boot)
    return why


def was_set_back(evidence: Evidence) -> bool:
    """Whether this file may lack what its agent has acknowledged, for all that is known.

    Its `as_of` is then none until it has read all other logs, as that of a restored file. A crash
    alone takes nothing that was acknowledged.
    """
    life = evidence.life
    if life.boot == 0 or life.burnt:
        return False
    answers = [a for a in evidence.answers.values() if isinstance(a, Confirmation)]
    newer = any(
        a.seen > life.seq or a.read_to > life.lsn or a.boot.number > life.boot for a in answers
    )
    return newer or life.clean


def _place(url: str) -> int:
    return int(url[len("sim://") :])
