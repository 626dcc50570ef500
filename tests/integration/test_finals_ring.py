"""Certified finals of three regions, over HTTP and on the command line; one of them down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cluster.final_file import verify
from tests.integration.fault_rig import eventually
from tests.integration.membership_rig import all_met
from tests.integration.regions_rig import Regions, at, path, three_regions
from tests.integration.test_commands import Line

DAY = "day:2026-11-30"
DAYS = [{"name": "day"}, {"name": "all"}]
FINAL = path("boards", "b", "windows", DAY, "final")
LATE = path("boards", "b", "windows", DAY, "late")
CLOSED = at(hours=13)


async def certified(regions: Regions, version: int = 0) -> dict[str, Any]:
    """By region that runs, the final once that version is in force and certified there."""
    found: dict[str, Any] = {}
    for name in regions.running:

        async def there(name: str = name) -> bool:
            status, found[name] = await regions.ask(name, "GET", FINAL)
            if status != 200:
                return False
            told = found[name]["certificate"]
            everybody = told["certified_at"].keys() >= set(regions.running)
            return bool(everybody and told["version"] == version)

        await eventually(there)
    return found


async def export(regions: Regions, name: str) -> bytes:
    url = f"{regions.ring[name].url}{FINAL}?format=jsonl"
    async with regions.session.get(url) as response:
        assert response.status == 200
        return await response.read()


def rows_of(final: Any) -> list[tuple[int, str, int]]:
    return [(row["rank"], row["member"], row["score"]) for row in final["entries"]]


async def test_three_regions_certify_one_final_and_sign_alike(tmp_path: Path) -> None:
    async with three_regions() as regions:
        await regions.define("b", rule="sum", windows=DAYS)
        for name in ("a", "b", "c"):
            await regions.write(name, "b", member="all", add=1)
            await regions.write(name, "b", member=name, add=5)
        await regions.set_clock(CLOSED)
        finals = await certified(regions)
        assert len({final["certificate"]["hash"] for final in finals.values()}) == 1
        for final in finals.values():
            assert rows_of(final) == [(1, "c", 5), (2, "b", 5), (3, "a", 5), (4, "all", 3)]
            assert final["certificate"]["agents"] == ["a", "b", "c"]
        assert len({await export(regions, name) for name in finals}) == 1

        line, file = Line(regions.ring["b"].url), tmp_path / "final.jsonl"
        shown = await line.says("final", "b", DAY, "--limit", "2")
        assert f"b {DAY}: certified, version 0, 4 members" in shown
        assert "unanimous: agreed by a, b, c" in shown
        assert (" c " in shown, " all " in shown) == (True, False)
        said = await line.says("final", "show", "b", DAY, "--output", str(file))
        assert "hash and signature are right" in said
        assert file.read_bytes() == await export(regions, "c")
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) * 2 // 3])
        await line.says("final", "b", DAY, "--output", str(file))
        assert file.read_bytes() == whole
        await line.says("final", "b", DAY, "--output", str(file))  # there is nothing left to do
        assert file.read_bytes() == whole

        other = await line.call("final", "b", "day:2026-12-01", "--output", str(file))
        assert (other.exit_code, f"an export of window {DAY}" in other.stderr) == (1, True)

        key = (await regions.send("a", "GET", "/v1/ring/keys"))["keys"][0]["public_key"]
        _verifies(line, file, key)
        assert "nothing came after" in await line.says("final", "late", "b", DAY)
        none = await line.call("final", "b", "day:2026-12-01")
        assert (none.exit_code, "is open" in none.stderr) == (1, True)


def _verifies(line: Line, file: Path, key: str) -> None:
    """`final verify` takes the export as it is, and no other one."""

    def answer(*more: str) -> tuple[int, str]:
        result = line.run("final", "verify", str(file), *more)
        return result.exit_code, result.output

    assert answer("--key", key)[0] == 0
    code, said = answer("--json")
    assert (code, json.loads(said)["public_key"]) == (0, key)
    assert "signed with the key" in answer()[1]
    code, said = answer("--key", "00" * 32)
    assert (code, "not with the one of --key" in said) == (1, True)
    code, said = answer("--key", "abc")
    assert (code, "64 hexadecimal digits" in said) == (1, True)
    content = file.read_bytes()
    file.write_bytes(content[: content.rindex(b'{"rows"')])
    assert "it ends early: the signature is not there" in answer()[1]
    file.write_bytes(content[: content.index(b'"row":2')])
    assert "it ends early, in line 4 of 6" in answer()[1]
    file.write_bytes(content.replace(b'"score":3', b'"score":4'))
    code, said = answer("--key", key)
    assert (code, "line 5 is not as it was signed" in said) == (1, True)
    file.write_bytes(content)


async def _goes_down(regions: Regions) -> None:
    """Region c takes something that nobody else gets to know, and dies; then the day ends."""
    regions.ring.cut_off("c")
    await regions.write("c", "b", member="cy", add=100)
    await regions.kill("c")
    await regions.set_clock(CLOSED)

    async def waits() -> bool:
        status, answer = await regions.ask("a", "GET", FINAL)
        return status == 404 and "it waits for c" in answer["detail"]

    await eventually(waits)
    windows = (await regions.send("a", "GET", path("boards", "b", "windows")))["windows"]
    assert [its["waits_for"] for its in windows if its["window"] == DAY] == [["c"]]

    async def told() -> bool:
        finals = (await regions.send("b", "GET", "/v1/ring"))["finals"]
        return bool(finals["pending"] == 1 and finals["waiting"] == {"c": 1})

    await eventually(told)


async def _overrides(line: Line) -> None:
    """An operator looks, and goes on without it: once."""
    without = ("certify", "b", DAY, "--without", "c", "--reason", "fire")
    shown = await line.says(*without, "--dry-run")
    assert "version 1 would begin: a, b must agree" in shown
    assert "c is left out: the final has what it wrote up to 20" in shown
    assert "Nothing was changed." in shown
    assert "1 closed window not certified here yet" in (await line.call("ring", "status")).output
    wrong = await line.call("certify", "b", DAY, "--without", "b", "--dry-run")
    assert (wrong.exit_code, "does not wait for b" in wrong.output) == (1, True)
    assert (await line.call("certify", "b", DAY)).exit_code == 1
    answer = await line.answers(*without)
    assert (answer["version"], answer["without"]) == (1, ["c"])
    assert (await line.call(*without)).exit_code == 1


async def test_who_was_left_out_is_taken_in_again() -> None:
    """The one that was waited for is lost for good, when the one left out is back already."""
    async with three_regions() as regions:
        await regions.define("b", rule="sum", windows=DAYS)
        await regions.write("a", "b", member="ann", add=7)
        await regions.holds({"b": {DAY: {"ann": 7}}})
        await regions.kill("c")
        await regions.kill("b")
        await regions.set_clock(CLOSED)
        line = Line(regions.ring["a"].url)

        async def begun() -> bool:
            return (await line.call("certify", "b", DAY, "--without", "c")).exit_code == 0

        await eventually(begun)
        await regions.start("c")
        await regions.set_clock(CLOSED)
        status, answer = await regions.ask("a", "GET", FINAL)
        assert (status, "it waits for b" in answer["detail"]) == (404, True)
        assert "version 1 was begun without c;" in answer["detail"]
        assert "version 2 begins: a, b, c must agree" in await line.says("certify", "b", DAY)
        assert (await line.call("certify", "b", DAY)).exit_code == 1
        await line.says("certify", "b", DAY, "--without", "b")
        finals = await certified(regions, 3)
        assert {tuple(its["certificate"]["agents"]) for its in finals.values()} == {("a", "c")}


async def test_an_operator_goes_on_without_a_region_that_comes_back_later(tmp_path: Path) -> None:
    async with three_regions() as regions:
        await regions.define("b", rule="sum", windows=DAYS)
        await regions.write("c", "b", member="cy", add=5)
        await regions.write("a", "b", member="ann", add=7)
        await regions.holds({"b": {DAY: {"ann": 7, "cy": 5}}})
        await _goes_down(regions)
        line = Line(regions.ring["a"].url)
        await _overrides(line)
        finals = await certified(regions, 1)
        assert finals.keys() == {"a", "b"}
        for final in finals.values():
            said = final["certificate"]
            assert rows_of(final) == [(1, "ann", 7), (2, "cy", 5)]
            assert (said["mode"], said["without"], said["reason"]) == ("override", ["c"], "fire")
            assert said["agents"] == ["a", "b"]
        hash_ = finals["a"]["certificate"]["hash"]

        regions.ring.heal()
        await regions.start("c")
        await all_met(regions.session, regions.ring)
        finals = await certified(regions, 1)
        assert {its["certificate"]["hash"] for its in finals.values()} == {hash_}
        assert rows_of(finals["c"]) == [(1, "ann", 7), (2, "cy", 5)]
        for name in finals:

            async def listed(name: str = name) -> bool:
                late = await regions.send(name, "GET", LATE)
                return [its["live_score"] for its in late["entries"]] == [105]

            await eventually(listed)
        shown = await line.says("final", "late", "b", DAY)
        assert "1 other score" in shown
        file = tmp_path / "c.jsonl"
        await Line(regions.ring["c"].url).says("final", "b", DAY, "--output", str(file))
        assert verify(file).header.certificate.without == ["c"]

        await line.says("certify", "b", DAY, "--revise")
        finals = await certified(regions, 2)
        assert {its["certificate"]["hash"] for its in finals.values()} != {hash_}
        assert {tuple(rows_of(its)) for its in finals.values()} == {((1, "cy", 105), (2, "ann", 7))}
        assert finals["c"]["history"][0]["hash"] == hash_
        shown = await line.says("final", "b", DAY)
        assert f"before it was version 1: {hash_}" in shown
        assert "made anew: agreed by a, b, c" in shown
        assert "in force is version 2" in await line.says("final", "b", DAY, "--version", "1")

        stale = await Line(regions.ring["c"].url).call("final", "b", DAY, "--output", str(file))
        assert (stale.exit_code, "another final than the one in force" in stale.stderr) == (1, True)
        assert verify(file).header.version == 1, "it is as it was"
        again = await line.says("final", "b", DAY, "--version", "1", "--output", str(file))
        assert "version 1 (override)" in again
