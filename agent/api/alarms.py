"""Alarms: what must not be, gathered from the parts that notice it."""

from __future__ import annotations

from agent.api.services import Services
from agent.certifying.status import CertifyingStatus

DIVERGED_TIMES = 3  # a write in flight can make states differ once; not again and again
RAISED = (
    "removed",
    "twin",
    "fork",
    "diverged",
    "damaged",
    "tail_lost",
    "forked",
    "peer_ahead",
    "covered_changed",
    "late_facts",
    "finals_differ",
    "final_conflict",
)


def alarms(services: Services) -> dict[str, str]:
    """What is wrong now, as sentences, by a name of RAISED (further ones end with a peer's)."""
    counts = services.counts
    found = dict(services.peers.alarms)
    fork = services.queue.closed.get("fork")
    if fork is not None:
        found["fork"] = f"writes are refused: {fork.detail}; {fork.hint}"
    for peer in services.peers.status():
        if peer.diverged >= DIVERGED_TIMES:
            found[f"diverged from {peer.name}"] = (
                f"{peer.name} claims the same writes and has other cells:"
                " 'tallyring audit' names them"
            )
    if counts.forked:
        found["forked"] = "a write came back with another value: two processes wrote as one"
    if counts.peer_ahead:
        found["peer_ahead"] = "a peer knew later writes of this agent than its own file"
    if counts.covered_changed:
        found["covered_changed"] = "an agent claimed a write that it did not hold"
    if counts.late_facts:
        found["late_facts"] = (
            "entries came from an agent after their keys were collected: a retry that another"
            " region took may have counted twice"
        )
    finals = certifying_status(services)
    if finals.disagreeing:
        found["finals_differ"] = (
            f"agents have closed {finals.disagreeing} windows and hold different standings of them:"
            " 'tallyring audit' names the cells"
        )
    if finals.conflicts:
        found["final_conflict"] = (
            f"{finals.conflicts} windows have two different finals under one version: operators"
            " overrode at once; 'tallyring certify --revise' makes one of them"
        )
    return found


def certifying_status(services: Services) -> CertifyingStatus:
    """What waits to be certified; nothing where nothing certifies."""
    certifier = services.certifier
    return CertifyingStatus() if certifier is None else certifier.status()


def raised(services: Services) -> dict[str, bool]:
    """Which alarms stand, by the names of RAISED."""
    found = {name.split(" ")[0] for name in alarms(services)}
    return {name: name in found for name in RAISED}
