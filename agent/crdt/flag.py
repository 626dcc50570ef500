"""Causal-length flags: whether something is so, changed back and forth by anybody.

Yu, Rostad: A low-cost set CRDT based on causal lengths (PaPoC 2020). The value is (length, minor,
body); odd means present, and the greater length wins. Taking something away adds 1 to an odd length
and changes nothing else: it takes away what it has seen. Saying that something is so raises the
length to the next odd one *above* what it has seen, also where it was odd: what is said here
outlives what was taken away elsewhere without having seen it (docs/adr/0014).
"""

from __future__ import annotations

from agent.crdt.cell import Value


def is_on(value: Value | None) -> bool:
    """Whether it is so."""
    return value is not None and value[0] % 2 == 1


def on(value: Value | None, minor: int = 0, body: bytes = b"") -> Value:
    """The flag after somebody said that it is so."""
    length = 0 if value is None else value[0]
    return (length + 2 if length % 2 else length + 1, minor, body)


def off(value: Value | None, minor: int = 0, body: bytes = b"") -> Value | None:
    """The flag after somebody took it away; None where it was not so: nothing changes."""
    if not is_on(value):
        return None
    assert value is not None
    return (value[0] + 1, minor, body)
