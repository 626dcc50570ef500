-- A part of one window of a board, with everything needed to read it, in one atomic look.
--
-- KEYS     watermark, sorted set, meta
-- ARGV[1]  a member, whose neighbourhood is wanted, or '' for a page
-- ARGV[2]  page: how many to leave out from the best
-- ARGV[3]  page: how many entries; member: how many on each side
-- Returns {watermark fields, meta fields, size, position of the first entry, how many are strictly
-- better than it (ties `shared` only), its members and scores in turn}; only the first two where either
-- is missing; position -1 where the member is not there.
local wm = redis.call('HMGET', KEYS[1], 'ring', 'region', 'agent', 'log', 'lsn', 'as_of')
local meta = redis.call('HMGET', KEYS[3], 'b', 'ties', 'epoch_ms', 'tick_ms', 'order', 'generation', 'shape',
  'window', 'start_ms', 'end_ms', 'as_of')
if not wm[1] or not meta[1] then
  return {wm, meta}
end
local low = meta[5] == 'low'
local size = redis.call('ZCARD', KEYS[2])
local first, last
if ARGV[1] ~= '' then
  local place = redis.call(low and 'ZRANK' or 'ZREVRANK', KEYS[2], ARGV[1])
  if not place then
    return {wm, meta, size, -1, 0, {}}
  end
  first = math.max(0, place - tonumber(ARGV[3]))
  last = place + tonumber(ARGV[3])
else
  first = tonumber(ARGV[2])
  last = first + tonumber(ARGV[3]) - 1
end
local entries = {}
if last >= first then
  entries = redis.call(low and 'ZRANGE' or 'ZREVRANGE', KEYS[2], first, last, 'WITHSCORES')
end
local better = 0
if meta[2] == 'shared' and #entries > 0 then
  if low then
    better = redis.call('ZCOUNT', KEYS[2], '-inf', '(' .. entries[2])
  else
    better = redis.call('ZCOUNT', KEYS[2], '(' .. entries[2], '+inf')
  end
end
return {wm, meta, size, first, better, entries}
