"""What the ring looks like in a terminal: members, the lag of each region behind each, alarms."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cluster.commands.call import lag, plain, some, table

HISTORY_S = 60  # an error this much older than the last success is not shown
GONE = ("left", "removed")


def wrong(answer: dict[str, Any]) -> list[str]:
    """What is not well with a ring, as sentences: alarms, and members that can't be reached."""
    found = [plain(alarm) for alarm in answer["alarms"]]
    for member in answer["members"]:
        if member["name"] == answer["agent"] or member["status"] in GONE:
            continue
        contact = member["contact"]
        if contact is None or contact["last_exchange"] is None:
            found.append(f"{plain(member['name'])} was never met")
        elif contact["state"] == "down":
            found.append(f"{plain(member['name'])} is down")
    return found


def whole_ring(answer: dict[str, Any]) -> Group:
    """Everything that `ring status` shows."""
    parts: list[RenderableType] = [members(answer)]
    if len(answer["matrix"]):
        parts.append(matrix(answer))
    parts.append(Text("\n".join(_lines(answer))))
    return Group(*parts)


def members(answer: dict[str, Any]) -> Table:
    """A line for each agent of the ring; it fits into 80 columns where names are short."""
    made = table("agent", "region", "state", ">lag", ">to send", "read to", ">incs", ">boot")
    for member in answer["members"]:
        contact = member["contact"] or {}
        me, gone = member["name"] == answer["agent"], member["status"] in GONE
        behind, cursor = contact.get("rows_behind"), member["cursor"]
        made.add_row(
            plain(member["name"]),
            plain(member["region"]),
            _state(member, contact, me),
            "" if me or gone else lag(member["lag_ms"]),
            "" if behind is None or gone else f"{behind:,}",
            "" if cursor is None else f"{cursor['log'][:4]}:{cursor['lsn']}",
            str(len(member["incarnations"])),
            str(member["boot"] or ""),
        )
    return made


def _state(member: dict[str, Any], contact: dict[str, Any], me: bool) -> str:
    """Its status in the ring where that is not simply active, and how the contact with it is."""
    status = member["status"]
    if status in GONE:
        return str(status)
    near = "this agent" if me else str(contact.get("state", "not met yet"))
    return near if status == "active" else f"{status}, {near}"


def matrix(answer: dict[str, Any]) -> Table:
    """How far each region (a line) is behind what each other one wrote (a column)."""
    cells = {(cell["region"], cell["of"]): cell for cell in answer["matrix"]}
    regions = sorted({region for pair in cells for region in pair})
    made = table("behind \\ of", *(f">{plain(region)}" for region in regions))
    for region in regions:
        made.add_row(plain(region), *(_behind(cells.get((region, of))) for of in regions))
    return made


def _behind(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return ""
    rows = "rows unknown" if cell["rows"] is None else some(cell["rows"], "row")
    age = cell["age_ms"]
    old = f" ({lag(age)} ago)" if age is not None and age >= 5_000 else ""
    return f"{lag(cell['lag_ms'])}, {rows}{old}"


def _lines(answer: dict[str, Any]) -> list[str]:
    me = answer["identity"]
    lines = [
        f"incarnation {me['incarnation']} since {me['since']}, boot {me['boot']}",
        f"log {me['log']}, secret {', '.join(me['secrets'])}",
    ]
    if me["minted"]:
        lines.append(f"a new incarnation was begun: {plain(me['minted'])}")
    if me["burnt"]:
        lines.append(f"the next write begins a new incarnation: {plain(me['burnt'])}")
    if not me["complete"]:
        unread = ", ".join(map(plain, me["unread"])) or "nobody"
        lines.append(f"not everything is known to be here yet; still to read: {unread}")
    for code, why in answer["refuses"].items():
        lines.append(f"writes are refused ({code}): {plain(why)}")
    lines += _finals(answer["finals"])
    if answer["leaving"] is not None:
        lines.append(leaving_line(answer["leaving"]))
    lines += [f"{plain(new['name'])}: joins, {_left(new)} to fetch" for new in answer["joining"]]
    for member in answer["members"]:
        lines += _of_member(member)
    return lines + [f"ALARM: {plain(alarm)}" for alarm in answer["alarms"]]


def _finals(finals: dict[str, Any]) -> list[str]:
    """What is to be said about certified finals; nothing where nothing waits."""
    lines = []
    if finals["pending"]:
        waits = ", ".join(f"{plain(name)} ({n:,})" for name, n in finals["waiting"].items())
        lines.append(
            f"{some(finals['pending'], 'closed window')} not certified here yet; waits for"
            f" {waits or 'nobody'}"
        )
    if finals["fetching"]:
        lines.append(f"the rows of {some(finals['fetching'], 'final')} are being fetched")
    if finals["late"]:
        lines.append(f"{some(finals['late'], 'final')} of which something came later")
    if finals["trouble"]:
        lines.append(f"certifying waits: {plain(finals['trouble'])}")
    return lines


def _left(progress: dict[str, Any]) -> str:
    """How many rows are left, and how fast they get less."""
    speed = progress["rows_per_s"]
    rate = f" ({speed:,.0f} a second)" if speed else ""
    return f"{some(progress['rows_left'], 'row')}{rate} still"


def _of_member(member: dict[str, Any]) -> list[str]:
    name, contact = plain(member["name"]), member["contact"] or {}
    lines = []
    if contact.get("rows_left"):
        lines.append(f"{name}: {_left(contact)} to read")
    if member["unconfirmed"]:
        who = ", ".join(map(plain, member["unconfirmed"]))
        lines.append(f"{name}: its newest status is not confirmed by {who}")
    if contact.get("last_error") and not _is_history(contact):
        at, error = contact["last_error_at"], plain(contact["last_error"])
        success = contact["last_exchange"] or "never"
        lines.append(f"{name}: last success {success}; last error at {at}: {error}")
    return lines


def _is_history(contact: dict[str, Any]) -> bool:
    """Whether a contact has been well for so long that its last error says nothing any more."""
    well, wrong_at = contact["last_exchange"], contact["last_error_at"]
    if contact["state"] != "ok" or well is None or wrong_at is None:
        return False
    passed = datetime.fromisoformat(well) - datetime.fromisoformat(wrong_at)
    return passed > timedelta(seconds=HISTORY_S)


def leaving_line(leaving: dict[str, Any]) -> str:
    """How far an agent is with leaving, in a line."""
    waits = ", ".join(
        f"{plain(wait['name'])} (" + _rows(wait["rows"]) + ")" for wait in leaving["waits_for"]
    )
    return f"leaving: {leaving['phase']}" + (f", waits for {waits}" if waits else "")


def _rows(rows: int | None) -> str:
    return "not met" if rows is None else some(rows, "row")
