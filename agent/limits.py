"""Every fixed bound of the system, in one place, each with its reason.

What an operator may turn is a setting (agent/config.py); what two agents must agree on, or what
the formats promise, is here. The unit stands last in the name.
"""

from __future__ import annotations

# --- numbers -------------------------------------------------------------------------------
# JSON numbers and Redis scores are IEEE doubles: integers are exact up to here.
SCORE_MAX = 2**53 - 1
# A counter slot only grows, also while increments and decrements cancel out in the score. 128
# slots of this size still add up below 2**63, so a total always fits SQLite's integer.
COUNTER_SLOT_MAX = 2**56 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
# `at` in ms since 1970: from the first year that RFC 3339 can write to the last (4199) that fits
# a hybrid time, which is 2**16 times as great and a 64-bit integer.
TIME_MS_MIN, TIME_MS_MAX = -62_135_596_800_000, 2**46
# How far ahead of this agent's clock an entry's `at` may be: clocks of game servers are a
# little off; a time from tomorrow would win `latest` boards for a day.
AHEAD_MS_MAX = 60_000

# --- names and bodies ----------------------------------------------------------------------
AGENT_NAME_BYTES_MAX = 64  # appears in slots and in every version of `times`
MEMBER_BYTES_MAX = 256  # any Unicode but NUL
DATA_BYTES_MAX = 1024  # an entry's `data`, as canonical msgpack
KEY_BYTES_MAX = 128  # an idempotency key
BODY_BYTES_MAX = 1024  # of any cell: it travels with every version of the cell
WINDOW_BYTES_MAX = 80
SPACE_BYTES_MAX = 512  # a space of this version is at most 158 bytes; newer ones may be longer
SLOT_BYTES_MAX = 512

# --- counts --------------------------------------------------------------------------------
BATCH_ENTRIES_MAX = 10_000  # of one request
BATCH_ERRORS_SHOWN_MAX = 20  # of one refusal: enough to see the pattern
BOARDS_MAX = 10_000  # the catalog is kept in memory
PAGE_MEMBERS_MAX = 1_000  # of one page of a board
WINDOWS_MAX = 8  # of one board: an entry is counted in each, and its fact names each
HISTORY_BANS_MAX = 100  # places for changes of one ban, by agent: the newest 50 or more are kept
BANS_MAX = 200_000  # kept in memory
ERASURES_MAX = 200_000  # kept in memory
IMPORT_ROWS_MAX = 2_000  # of one request: one transaction, as a chunk of a peer
NEIGHBORS_MAX = 100  # on each side of a member
LISTENERS_MAX = 8_192  # to live boards; about 25 KB each
LIVE_BOARDS_MAX = 1_000  # different tops that are listened to: each is read up to 5 times a second

# --- times ---------------------------------------------------------------------------------
KEY_RETENTION_MS_MAX = 7 * 86_400_000  # facts are many: they are not kept for ever

# --- messages ------------------------------------------------------------------------------
REQUEST_BYTES_MAX = 16 * 2**20  # a body on the public routes: 10,000 entries with data
PEER_MESSAGE_BYTES_MAX = 4 * 2**20  # a message between agents, packed and unpacked
CHUNK_SCANNED_ROWS_MAX = 20_000  # log entries looked at for one chunk: bounds a reply's time
# Peers' messages that are still arriving, all together. Whoever sends them has proven nothing yet.
PEER_ARRIVING_BYTES_MAX = 64 * 2**20
ARRIVING_FREE_BYTES = 64 * 2**10  # of each: what is smaller gets through, whatever else arrives
BODY_TIME_S = 30.0  # within which a body has to arrive: one that does not end holds memory
