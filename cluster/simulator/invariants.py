"""What must hold at every moment of a run: the invariants of docs/protocol.md.

I1 (stamp): a row is no more than what the write that its stamp names made of the cell.
I2 (cover): every write that a version vector claims is in the state.
I3 (cursor): every row of a log at or below its reader's cursor is in the reader's state.
I4 (log): every change gets a new place at the end of the log (checked by disk.py).
I5 (whole): at the head of a log, the reader has all of the state that it was served from.
I6 (causal): a row never precedes one that it was derived from (checked by keyed.py).

What is collected or erased, by the marks and tombstones that an agent holds, it need not hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent.crdt.cell import Key, Row, Value
from agent.exchange import Reply
from cluster.simulator import plain
from cluster.simulator.agent import SimulatedAgent
from cluster.simulator.history import History, show


@dataclass(slots=True)
class Claims:
    """How far the claims of one disk were checked: cells and vectors only grow, so the rest needs
    no second look.

    vectors: by incarnation, the seq.
    times: by agent, the place in its list of writes, and the time.
    """

    vectors: dict[int, int] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)

    def problems(self, agent: SimulatedAgent, history: History, exempt: Iterable[str]) -> list[str]:
        """I2 and `as_of`; the times of `exempt` agents are not looked at."""
        found = [self._cover(agent, history)]
        found += [
            self._times(agent, history, name, until_ms)
            for name, until_ms in sorted(agent.state.times.items())
            if name not in exempt and self.times.get(name, -1) < until_ms
        ]
        return [problem for problem in found if problem]

    def _cover(self, agent: SimulatedAgent, history: History) -> str:
        for inc, seq in agent.state.vv.items():
            for number in range(self.vectors.get(inc, 0) + 1, seq + 1):
                for key, value in history.commits.get((inc, number), ()):
                    mine = agent.disk.value(key)
                    if (mine is None or mine < value) and not excused(agent, key, history):
                        return f"I2: claims ({inc}, {number}), {show(key)} is {mine}, not {value}"
            self.vectors[inc] = max(seq, self.vectors.get(inc, 0))
        return ""

    def _times(self, agent: SimulatedAgent, history: History, name: str, until_ms: int) -> str:
        self.times[name] = until_ms
        for at_ms, key, value in history.times.get(name, ()):
            mine = agent.disk.value(key)
            missing = mine is None or mine < value
            if at_ms < until_ms and missing and not excused(agent, key, history):
                return f"as_of: says {name} up to {until_ms}, lacks {show(key)} of {at_ms}"
        return ""


def excused(agent: SimulatedAgent, key: Key, history: History) -> bool:
    """Whether an agent may lack what a cell held: it is gone, or was damaged everywhere."""
    return key in history.holes or plain.Gone(agent.disk.values()).holds(key)


def stamp_problems(rows: Iterable[Row], history: History) -> list[str]:
    """I1, for rows that have changed."""
    return [problem for row in rows if (problem := history.stamp_problem(row))]


def cursor_problem(reader: SimulatedAgent, peer: SimulatedAgent, history: History) -> str | None:
    """I3: every cell of the peer that its reader's cursor covers is in the reader's state."""
    reading = reader.state.cursors.get(peer.state.log)
    if reading is None:
        return None
    for lsn, row in peer.disk.rows():
        if lsn > reading.lsn:
            break
        mine = reader.disk.value(row.key)
        if (mine is None or mine < row.value) and not excused(reader, row.key, history):
            return (
                f"I3: a{reader.place} has read a{peer.place} to {reading.lsn}, not {show(row.key)}"
            )
    return None


def whole_problem(
    reader: SimulatedAgent, reply: Reply, served: Mapping[Key, Value], history: History
) -> str | None:
    """I5: who has joined the last chunk of a log has all that it was served from."""
    chunk = reply.chunk
    reading = None if chunk is None else reader.state.cursors.get(chunk.log)
    if chunk is None or not chunk.head or reading is None or reading.lsn < chunk.to:
        return None
    for key, value in served.items():
        mine = reader.disk.value(key)
        if (mine is None or mine < value) and not excused(reader, key, history):
            return f"I5: a{reader.place} is at the head of {reply.sender.agent}, lacks {show(key)}"
    return None
