"""What an error of Redis means, and what an operator can do about it."""

from __future__ import annotations

from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

from agent.errors import words_of

_BY_TYPE: tuple[tuple[type[Exception], str], ...] = (
    (
        OutOfMemoryError,
        "Redis has reached its maxmemory: raise it, or remove what others keep there",
    ),
    (
        ReadOnlyError,
        "this server is a replica: promote it, or let redis.url lead to the primary",
    ),
    (BusyLoadingError, "Redis is reading its file: nothing to do, it answers when it is through"),
    (AuthenticationError, "give the user and password in redis.url as Redis has them"),
    (NoPermissionError, "let this user run all commands on lb:{s0}:*, ct:{s0}:* and tr:{s0}:*"),
)
# Errors that redis-py has no type for, by their first word.
_BY_CODE = {
    "NOAUTH": "give the user and password in redis.url as Redis has them",
    "NOREPLICAS": "Redis wants more replicas than it has (min-replicas-to-write): bring them back",
    "MISCONF": "Redis can't save to its disk and refuses writes: see its log",
    "MASTERDOWN": "this replica has lost its primary: promote it, or mend the link",
    "CLUSTERDOWN": "a Redis Cluster is not supported: use one primary with replicas",
    "MOVED": "a Redis Cluster is not supported: use one primary with replicas",
    "CROSSSLOT": "a Redis Cluster is not supported: use one primary with replicas",
}
_ELSE = "see whether the server of redis.url runs and can be reached"


def explain(error: Exception) -> str:
    """What happened and what to do, in one line. The agent tries again by itself in any case."""
    name, words = type(error).__name__, words_of(error)
    return f"{name if words == name else f'{name}: {words}'} ({_hint(error)})"


def _hint(error: Exception) -> str:
    for kind, hint in _BY_TYPE:
        if isinstance(error, kind):
            return hint
    word = str(error).partition(" ")[0]
    if word in _BY_CODE:
        return _BY_CODE[word]
    if isinstance(error, ResponseError):
        return "Redis refuses the command: see its version and its ACL"
    return _ELSE
