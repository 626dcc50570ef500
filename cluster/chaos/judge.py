"""The judge: which values of a key can be right, given the ledger. Pure.

After all has healed, a sum must be what was acknowledged, less what was lost with right, plus some
of the writes in doubt (Maelstrom judges its counters so). What was lost with right is known cell by
cell: it was on a disk that was taken away, and on no other. `best` must be one of the scores sent,
and none below an acknowledged one; `latest` the last acknowledged write of its client, or one in
doubt.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from agent.crdt.slot import COUNTER_KINDS, Kind, incarnation_of
from cluster.chaos.ledger import Cell, Key, Ledger, Loss, Outcome

SHOWN_MAX = 20


@dataclass(slots=True)
class Judgement:
    """What was found. Counts are of keys, but `forgiven`, which is of amounts.

    lost: too low; doubled: too high, by whatever; other: neither, and yet no value that can be.
    """

    keys: int = 0
    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    other: int = 0
    forgiven: int = 0
    shown: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """Whether something was judged and nothing was wrong."""
        return self.keys > 0 and not (self.lost or self.doubled or self.other)

    def note(self, text: str) -> None:
        """Keep a finding as text; only the first ones are."""
        if len(self.shown) < SHOWN_MAX:
            self.shown.append(text)


def judge(
    ledger: Ledger,
    values: Mapping[tuple[str, str], int],
    cells: Mapping[Cell, int],
    incs: Collection[str],
) -> Judgement:
    """Judge the final values.

    Args:
        values: by board and member, as every region shows it; what nobody shows is missing.
        cells: the final `major` of each cell that a loss names.
        incs: the incarnations that agents write as at the end, hexadecimal.
    """
    made = Judgement()
    lost_of = _lost_amounts(ledger.losses, cells, incs, made)
    for key in ledger.keys.values():
        made.keys += 1
        made.acknowledged += key.ok_writes
        value = values.get(key.name)
        match key.rule:
            case "sum":
                _judge_sum(key, value, lost_of.get(key.name, 0), made)
            case "best":
                _judge_best(key, value, ledger.losses, made)
            case _:
                _judge_latest(key, value, ledger.losses, made)
    for board, member in values.keys() - ledger.keys.keys():
        made.other += 1
        made.note(f"{board} {member}: is shown, and nobody ever wrote it")
    return made


def reachable(base: int, doubtful: list[int]) -> set[int]:
    """Every value that a sum can have: the base, with any of the writes in doubt."""
    found = {base}
    for amount in doubtful:
        found |= {value + amount for value in found}
    return found


def _lost_amounts(
    losses: list[Loss], cells: Mapping[Cell, int], incs: Collection[str], made: Judgement
) -> dict[tuple[str, str], int]:
    """By key, what was lost with right: what only disks that were taken away had.

    A slot of an incarnation that writes no more shows it exactly: its greatest number on a lost
    disk, less what it has now. It may have more now than was on any disk at the time (a message
    was under way), and never less. Where an incarnation was kept, its slot goes on, and what was
    on other disks at the time counts.
    """
    amounts: dict[tuple[str, str], int] = {}
    ended: dict[Cell, tuple[int, int]] = {}
    for loss in losses:
        for cell, (had, left) in loss.cells.items():
            if cell[2][0] not in COUNTER_KINDS:
                continue
            if f"{incarnation_of(cell[2]):x}" in incs:
                _take(amounts, cell, had - (left or 0))
                continue
            most, least = ended.get(cell, (had, left or 0))
            ended[cell] = max(most, had), min(least, left or 0)
    for cell, (most, least) in ended.items():
        now = cells.get(cell, 0)
        if not least <= now <= most:
            made.other += 1
            made.note(
                f"{cell[0]} {cell[1]}: the slot {cell[2].hex()} of an ended incarnation is {now};"
                f" its disks held from {least} to {most}"
            )
        _take(amounts, cell, most - min(max(now, least), most))
    made.forgiven += sum(abs(amount) for amount in amounts.values())
    return amounts


def _take(amounts: dict[tuple[str, str], int], cell: Cell, amount: int) -> None:
    sign = -1 if cell[2][0] == Kind.DOWN else 1
    amounts[cell[:2]] = amounts.get(cell[:2], 0) + sign * amount


def _judge_sum(key: Key, value: int | None, lost: int, made: Judgement) -> None:
    possible = reachable(key.ok - lost, key.doubtful)
    if (value or 0) in possible:
        return
    text = f"{key.board} {key.member}: {value}, acknowledged {key.ok}"
    if lost:
        text += f", lost with right {lost}"
    if key.doubtful:
        text += f", in doubt {sorted(key.doubtful)}"
    _wrong(value or 0, min(possible), max(possible), text, made)


def _wrong(value: int, least: int, most: int, text: str, made: Judgement) -> None:
    if value < least:
        made.lost += 1
        made.note(f"LOST {least - value}: {text}")
    elif value > most:
        made.doubled += 1
        made.note(f"DOUBLED or invented {value - most}: {text}")
    else:
        made.other += 1
        made.note(f"IMPOSSIBLE: {text}")


def _judge_best(key: Key, value: int | None, losses: list[Loss], made: Judgement) -> None:
    sent = {write.number for write in key.writes}
    must = [
        write.number
        for write in key.writes
        if write.outcome is Outcome.OK
        # Whoever took it: its own disk may have been lost before, and this one have been the last.
        and not any(
            write.sent_s < loss.at_s and _only_there(loss, key, write.number) for loss in losses
        )
    ]
    if value is None:
        if must:
            made.lost += 1
            made.note(f"LOST: {key.board} {key.member} is not there; acknowledged: {max(must)}")
    elif value not in sent:
        made.doubled += 1
        made.note(f"INVENTED: {key.board} {key.member} shows {value}, which nobody sent")
    elif must and value < max(must):
        made.lost += 1
        made.note(f"LOST: {key.board} {key.member} shows {value}; acknowledged: {max(must)}")


def _only_there(loss: Loss, key: Key, score: int) -> bool:
    """Whether a score was on the lost disk alone."""
    for (board, member, slot), (_, left) in loss.cells.items():
        if (board, member) == key.name and slot[0] == Kind.BEST:
            return left is None or score > left
    return False


def _judge_latest(key: Key, value: int | None, losses: list[Loss], made: Judgement) -> None:
    forgiving = any(_concerns(loss, key) for loss in losses)
    ok = [write.number for write in key.writes if write.outcome is Outcome.OK]
    possible = {write.number for write in key.writes if write.outcome is not Outcome.OK}
    possible |= set(ok if forgiving else ok[-1:])
    if value is None:
        if ok and not forgiving:
            made.lost += 1
            made.note(f"LOST: {key.board} {key.member} is not there; acknowledged: {ok[-1]}")
    elif value not in possible:
        if value in ok:
            made.lost += 1
            made.note(f"LOST: {key.board} {key.member} shows {value}; the last ok was {ok[-1]}")
        else:
            made.doubled += 1
            made.note(f"INVENTED: {key.board} {key.member} shows {value}, which nobody sent")


def _concerns(loss: Loss, key: Key) -> bool:
    """Whether a loss took the key's cell, or came while it was written: its clock went back."""
    if any(cell[:2] == key.name for cell in loss.cells):
        return True
    mine = any(write.agent == loss.agent for write in key.writes)
    return mine and key.began_s <= loss.at_s <= key.ended_s
