"""Entity tags: which version of something a request's head says that its sender knows."""

from __future__ import annotations


def tags_in(header: str) -> frozenset[str]:
    """The tags of an If-Match or an If-None-Match, without quotes and marks of weakness.

    One that was sent without quotes is taken, too.
    """
    return frozenset(each.strip().removeprefix("W/").strip('"') for each in header.split(","))


def is_named(tag: str, header: str) -> bool:
    """Whether a tag is named in a header, or that is `*`, which names whatever there is."""
    return not tags_in(header).isdisjoint({"*", *tags_in(tag)})
