"""The requests that are sent, each in two forms: HTTP to an agent, RESP to a Valkey."""

from __future__ import annotations

import time
from random import Random
from typing import Any

import msgspec

HOT_MEMBERS = 10


def _http(method: str, path: str, body: Any = None) -> bytes:
    content = b"" if body is None else msgspec.json.encode(body)
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    if content:
        head += f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    return head.encode() + b"\r\n" + content


def _resp(*parts: str) -> bytes:
    encoded = [part.encode() for part in parts]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in encoded)


def _batch(board: str, members: list[str]) -> bytes:
    entries = [{"member": member, "add": 1} for member in members]
    return _http("POST", f"/v1/boards/{board}/entries", {"entries": entries})


def _pipeline(board: str, members: list[str]) -> bytes:
    return b"".join(_resp("ZINCRBY", board, "1", member) for member in members)


def single(board: str, resp: bool) -> list[bytes]:
    """One increment of one hot member."""
    if resp:
        return [_resp("ZINCRBY", board, "1", "hot")]
    return [_http("POST", f"/v1/boards/{board}/entries", {"member": "hot", "add": 1})]


def counter(name: str) -> list[bytes]:
    """One increment of one counter, by its short form."""
    return [_http("POST", f"/v1/counters/{name}", {"by": 1})]


def hot_batch(board: str, resp: bool, size: int) -> list[bytes]:
    """A batch over HOT_MEMBERS members."""
    members = [f"hot{i % HOT_MEMBERS}" for i in range(size)]
    return [(_pipeline if resp else _batch)(board, members)]


def new_batches(board: str, resp: bool, size: int, first: int, batches: int) -> list[bytes]:
    """Batches of members that were never there: numbers from `first` on."""
    make = _pipeline if resp else _batch
    return [
        make(board, [f"n{first + b * size + i:010}" for i in range(size)]) for b in range(batches)
    ]


def key(random: Random) -> str:
    """An idempotency key as clients make them: 16 characters at random."""
    return f"{random.getrandbits(64):016x}"


def keyed_batches(
    board: str, keyed: bool, size: int, members: int | None, batches: int, seed: int
) -> list[bytes]:
    """Requests of `size` entries over so many hot members, or over new ones where that is None.

    With `keyed` each entry has a key of its own and the time of now; else they are the same ones
    without. Another `seed` gives other keys and other new members.
    """
    random, now_ms = Random(seed), time.time_ns() // 1_000_000
    made = []
    for batch in range(batches):
        entries: list[dict[str, Any]] = []
        for i in range(size):
            number = batch * size + i
            name = f"k{seed:04}{number:08}" if members is None else f"hot{number % members}"
            entries.append({"member": name, "add": 1})
            if keyed:
                entries[-1] |= {"key": key(random), "at": now_ms}
        body = entries[0] if size == 1 else {"entries": entries}
        made.append(_http("POST", f"/v1/boards/{board}/entries", body))
    return made


def random_batches(
    board: str, resp: bool, size: int, population: int, seed: int, batches: int
) -> list[bytes]:
    """Batches of members drawn from those that are there."""
    make, random = _pipeline if resp else _batch, Random(seed)
    return [
        make(board, [member(random.randrange(population)) for _ in range(size)])
        for _ in range(batches)
    ]


def ranks(board: str, resp: bool, population: int, seed: int, count: int) -> list[bytes]:
    """The rank of one member, drawn at random."""
    random = Random(seed)
    names = [member(random.randrange(population)) for _ in range(count)]
    if resp:
        return [_resp("ZREVRANK", board, name) for name in names]
    return [_http("GET", f"/v1/boards/{board}/entries/{name}") for name in names]


def ranks_together(board: str, population: int, seed: int, size: int, count: int) -> list[bytes]:
    """The ranks of `size` members in one request, drawn at random."""
    random = Random(seed)
    return [
        _http(
            "POST",
            "/v1/ranks",
            {
                "reads": [
                    {"board": board, "member": member(random.randrange(population))}
                    for _ in range(size)
                ]
            },
        )
        for _ in range(count)
    ]


def top(board: str) -> list[bytes]:
    """The first page of a board."""
    return [_http("GET", f"/v1/boards/{board}/entries")]


def bare() -> list[bytes]:
    """A request that needs nothing but a server."""
    return [_http("GET", "/")]


def member(number: int) -> str:
    """The name of a member of the population."""
    return f"m{number:08}"


def fill(board: str, resp: bool, first: int, size: int) -> list[bytes]:
    """One request that adds `size` members of the population."""
    return [(_pipeline if resp else _batch)(board, [member(first + i) for i in range(size)])]
