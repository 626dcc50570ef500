"""The rules of finals as switches: M, G, K and 2 to 6, see rules.py.

Each is a patch of the product's functions where the simulated agents use them, but for K, which is
in the rim.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from agent.boards.finals import Final, SayFinal, Step, content_digest, next_step
from agent.boards.marks import Marks
from agent.boards.scale import Scale
from agent.certifying import steps
from agent.state import State
from cluster.simulator import certifying, keeping

FINAL_RULES = {
    "M": "each agent writes a mark when it closes a window",
    "G": "a certificate needs equal digests",
    "K": "a process looks at its clock before its first write",
    "2": "a frozen agent thaws if one that has not frozen has something else",
    "3": "a copy is frozen only if its window has not changed since",
    "4": "a digest says who has to agree",
    "5": "a digest is said once the vector covers all close marks",
    "6": "an agent whose disk was lost says nothing before it has read all other logs",
}
SLOW_MS = 3_000  # rule K left out: for how long a process goes by an older time, and how much older

Changes = list[tuple[object, str, object]]
NextStep = Callable[..., Step]


def changes() -> dict[str, Changes]:
    """By rule, what is put in the place of what, to leave it out."""
    return {
        "M": [
            (Marks, "settled", _always),
            (certifying, "next_step", _alone(next_step)),
        ],
        "G": [(certifying, "next_step", _alone(next_step))],
        "2": [(certifying, "next_step", _never_thawing(next_step))],
        "3": [(certifying, "said_at", _whatever_has_come(steps.said_at))],
        "4": [(steps, "content_digest", _without_names(content_digest))],
        "5": [(Marks, "settled", _closed_by_all)],
        "6": [
            (certifying, "may_say", _as_if_complete(steps.may_say)),
            (keeping, "promises", lambda _state: True),
        ],
    }


def _always(
    its: Marks,  # noqa: ARG001
    series: bytes,  # noqa: ARG001
    window: str,  # noqa: ARG001
    members: Iterable[str],  # noqa: ARG001
    vv: Mapping[int, int],  # noqa: ARG001
) -> bool:
    """Rule M left out: nobody waits for marks."""
    return True


def _closed_by_all(
    its: Marks,
    series: bytes,
    window: str,
    members: Iterable[str],
    vv: Mapping[int, int],  # noqa: ARG001
) -> bool:
    """Rule 5 left out: a mark that has come is enough."""
    return all(its.closed_by(name, series, window) for name in members)


def _alone(its: NextStep) -> NextStep:
    """Rules G and M left out: nobody waits for what others say."""

    def alone(final: Final, agent: str, members: Collection[str], *rest: object) -> Step:
        mine = [name for name in members if name == agent]
        return its(final, agent, mine, *rest)

    return alone


def _never_thawing(its: NextStep) -> NextStep:
    def frozen(*arguments: object) -> Step:
        step = its(*arguments)
        return Step.WAIT if step == Step.THAW else step

    return frozen


def _whatever_has_come(its: Callable[..., SayFinal]) -> Callable[..., SayFinal]:
    def said(*arguments: object) -> SayFinal:
        return replace(its(*arguments), lsn=None)

    return said


def _without_names(its: Callable[..., bytes]) -> Callable[..., bytes]:
    def digest(
        version: int,
        required: Iterable[str],  # noqa: ARG001
        scale: Scale,
        key: bytes,
        hidden: Iterable[bytes],
        total: int,
    ) -> bytes:
        return its(version, [], scale, key, hidden, total)

    return digest


def _as_if_complete(its: Callable[..., bool]) -> Callable[..., bool]:
    def may(space: bytes, final: Final, state: State) -> bool:
        return its(space, final, replace(state, complete=True))

    return may
