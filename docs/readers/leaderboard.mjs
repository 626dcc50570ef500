// Reads ranks and counters straight from a region's Redis, with ioredis. It never writes.
//
//     node leaderboard.mjs PORT page BOARD WINDOW OFFSET LIMIT
//     node leaderboard.mjs PORT rank BOARD WINDOW MEMBER...
//     node leaderboard.mjs PORT counter NAME
//
// It prints JSON, and ends with code 75 (try again later) while Redis is being filled.

import Redis from "ioredis";

const TRIES = 10;
const TRY_LATER = 75;

/** What was asked for is not in Redis now: being filled, or a window that is no more. */
class NotFilled extends Error {}

/** How the numbers of a window are read: what its meta says. */
class Scale {
  constructor(meta) {
    this.power = 2 ** Number(meta.b);
    this.timed = meta.b !== "0";
    this.low = meta.order === "low";
    this.shared = meta.ties === "shared";
    this.epochMs = Number(meta.epoch_ms);
    this.tickMs = Number(meta.tick_ms);
    // Ticks are kept as they are where the greater number is to be the better or the worse one
    // anyway; else they are counted down from the greatest.
    this.turned = (meta.ties === "last") === this.low;
  }

  /** The score, and when it was reached in ms since 1970 (null where the board keeps no time). */
  decode(composite) {
    // Not >> and &: those are of 32 bits. A composite has at most 53, so this is exact.
    const score = Math.floor(composite / this.power);
    const tie = composite - score * this.power;
    if (!this.timed) return { score, reached_ms: null };
    const tick = this.turned ? this.power - 1 - tie : tie;
    return { score, reached_ms: this.epochMs + tick * this.tickMs };
  }
}

/** What each command of a transaction answered. */
async function results(transaction) {
  return (await transaction.exec()).map(([error, answer]) => {
    if (error) throw error;
    return answer;
  });
}

/** How many members a window has, and `limit` (at least 1) of them behind the first `offset`. */
export async function page(client, board, window, offset, limit) {
  const key = `lb:{s0}:${board}:${window}`;
  // With ties `shared` the rank of a page's first member is 1 + how many are better, and that can
  // only be asked with its number: so what one look finds is counted in the next one, which must
  // find it again. All that one look says is of one moment.
  let head = "0";
  for (let tries = 0; tries < TRIES; tries++) {
    const [meta, total, lowest, highest, below, above] = await results(
      client
        .multi()
        .hgetall(`${key}:meta`)
        .zcard(key)
        .zrange(key, offset, offset + limit - 1, "WITHSCORES")
        .zrevrange(key, offset, offset + limit - 1, "WITHSCORES")
        .zcount(key, "-inf", `(${head}`)
        .zcount(key, `(${head}`, "+inf"),
    );
    if (!meta.b) throw new NotFilled(`${board} ${window}`);
    const scale = new Scale(meta);
    const rows = scale.low ? lowest : highest;
    if (!scale.shared || rows.length === 0 || rows[1] === head) {
      return { total, entries: ranked(scale, rows, offset, scale.low ? below : above) };
    }
    head = rows[1];
  }
  throw new NotFilled(`${board} ${window}: it changes faster than it is read`);
}

/** The lines of a page. `better`: how many are strictly better than its first member. */
function ranked(scale, rows, offset, better) {
  const lines = [];
  let rank = better + 1;
  for (let at = 0; at < rows.length; at += 2) {
    if (!scale.shared || (at > 0 && rows[at + 1] !== rows[at - 1])) rank = offset + at / 2 + 1;
    lines.push({ rank, member: rows[at], ...scale.decode(Number(rows[at + 1])) });
  }
  return lines;
}

/** A member's line; null where it is not ranked: no entry, banned, or erased. */
export async function place(client, board, window, member) {
  const key = `lb:{s0}:${board}:${window}`;
  let mine = "0";
  for (let tries = 0; tries < TRIES; tries++) {
    const [meta, composite, fromLow, fromHigh, below, above] = await results(
      client
        .multi()
        .hgetall(`${key}:meta`)
        .zscore(key, member)
        .zrank(key, member)
        .zrevrank(key, member)
        .zcount(key, "-inf", `(${mine}`)
        .zcount(key, `(${mine}`, "+inf"),
    );
    if (!meta.b) throw new NotFilled(`${board} ${window}`);
    if (composite === null) return null;
    const scale = new Scale(meta);
    if (!scale.shared || composite === mine) {
      let position = scale.low ? fromLow : fromHigh;
      if (scale.shared) position = scale.low ? below : above;
      return { rank: position + 1, member, ...scale.decode(Number(composite)) };
    }
    mine = composite;
  }
  throw new NotFilled(`${board} ${window}: it changes faster than it is read`);
}

/** The exact value of a counter, as text: it may be beyond 2^53. "0" where nothing was added. */
export async function counter(client, name) {
  const [value, complete] = await results(
    client.multi().get(`ct:{s0}:${name}`).exists("lb:{s0}:counters:all:meta"),
  );
  if (!complete) throw new NotFilled("counters");
  return value ?? "0";
}

const [port, what, ...rest] = process.argv.slice(2);
const client = new Redis(Number(port));
try {
  let answer;
  if (what === "page") {
    answer = await page(client, rest[0], rest[1], Number(rest[2]), Number(rest[3]));
  } else if (what === "rank") {
    answer = [];
    for (const member of rest.slice(2)) {
      answer.push(await place(client, rest[0], rest[1], member));
    }
  } else {
    answer = await counter(client, rest[0]);
  }
  console.log(JSON.stringify(answer));
} catch (error) {
  if (!(error instanceof NotFilled)) throw error;
  console.error(`not filled: ${error.message}`);
  process.exitCode = TRY_LATER;
} finally {
  client.disconnect();
}
