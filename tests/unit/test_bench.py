"""The benchmark's arithmetic and its requests; what it measures is never a test."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from bench import requests
from bench.figures import Aim, Figure
from bench.load import Clients, Load, LoadError


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    figure = Figure("f", "x/s", (10, 30, 20), Aim(0.5), {"other": (20, 30, 80)}, "other")
    assert figure.middle == 20
    assert figure.ratio("other") == 0.5
    assert figure.document()["met"] is True


@pytest.mark.parametrize(("at_least", "value", "met"), [(True, 9, False), (False, 9, True)])
def test_an_aim_has_a_direction(at_least: bool, value: float, met: bool) -> None:
    assert Aim(10, at_least=at_least).met(value) is met


def test_both_forms_of_a_batch_say_the_same() -> None:
    (http,) = requests.new_batches("b", False, 2, 7, 1)
    head, _, body = http.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/boards/b/entries HTTP/1.1\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    members = [entry["member"] for entry in json.loads(body)["entries"]]
    (resp,) = requests.new_batches("b", True, 2, 7, 1)
    assert resp.count(b"ZINCRBY") == len(members) == 2
    assert all(member.encode() in resp for member in members)


def test_with_and_without_keys_the_entries_are_the_same() -> None:
    def entries(*arguments: Any) -> list[dict[str, Any]]:
        bodies = [made.partition(b"\r\n\r\n")[2] for made in requests.keyed_batches(*arguments)]
        return [entry for body in bodies for entry in json.loads(body)["entries"]]

    plain, keyed = entries("b", False, 2, None, 3, 7), entries("b", True, 2, None, 3, 7)
    assert [{"member": each["member"], "add": each["add"]} for each in keyed] == plain
    assert len({each["member"] for each in keyed}) == len({each["key"] for each in keyed}) == 6
    others = entries("b", True, 2, None, 3, 8)
    assert {each["key"] for each in keyed}.isdisjoint(each["key"] for each in others)
    assert len({each["member"] for each in entries("b", True, 4, 2, 3, 7)}) == 2
    (single,) = requests.keyed_batches("b", True, 1, 1, 1, 7)
    assert "entries" not in json.loads(single.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("status", ["200 OK", "500 No"])
async def test_the_client_counts_answers_and_ends_at_an_error(status: str) -> None:
    answer = f"HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\n{{}}".encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            for part in (answer[:20], answer[20:]):  # an answer may come in pieces
                writer.write(part)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    load = Load(requests.counter, ("c",), connections=4).at(port, 0.1)
    async with server:
        with Clients() as clients:
            if status == "200 OK":
                driven = await clients.drive(load)
                assert driven.requests >= 4
                assert driven.per_s > 0
            else:
                with pytest.raises(LoadError, match="500 No"):
                    await clients.drive(load)
