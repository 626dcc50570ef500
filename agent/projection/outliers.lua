-- The members of a window whose scores lie far from all others', in one atomic look.
--
-- The quartiles are read by position from the sorted set and decoded as scores: those at the ranks
-- ceil(n/4), ceil(n/2) and ceil(3n/4), counted from the lowest score. Who lies beyond the fence
-- stands at the better end of the set, so counting them, and a page of them, costs little.
--
-- KEYS     watermark, sorted set, meta
-- ARGV[1]  how many members there must be
-- ARGV[2]  how many spreads beyond the quartile the fence is
-- ARGV[3]  how many of the flagged to leave out, ARGV[4] how many to give
-- Returns {watermark fields, meta fields, size, {q1, median, q3}, flagged, position of the first entry,
-- how many are strictly better than it, the entries' members and scores in turn};
-- only the first two where either is missing, and the first three where there are too few members.
-- A fence that a double can't hold exactly lies beyond every score: nothing is flagged, and rightly.
local wm = redis.call('HMGET', KEYS[1], 'ring', 'region', 'agent', 'log', 'lsn', 'as_of')
local meta = redis.call('HMGET', KEYS[3], 'b', 'ties', 'epoch_ms', 'tick_ms', 'order', 'generation', 'shape',
  'window', 'start_ms', 'end_ms', 'as_of')
if not wm[1] or not meta[1] then
  return {wm, meta}
end
local size = redis.call('ZCARD', KEYS[2])
if size < tonumber(ARGV[1]) then
  return {wm, meta, size}
end
local unit = 2 ^ tonumber(meta[1])
local low = meta[5] == 'low'
local function score_at(rank)
  local found = redis.call('ZRANGE', KEYS[2], rank - 1, rank - 1, 'WITHSCORES')
  return math.floor(tonumber(found[2]) / unit)
end
local q1 = score_at(math.ceil(size / 4))
local median = score_at(math.ceil(size / 2))
local q3 = score_at(math.ceil(3 * size / 4))
local spread = q3 - q1
if spread == 0 then
  spread = math.max(1, math.ceil(math.abs(median) / 10))
end
local fence, flagged
if low then
  fence = q1 - tonumber(ARGV[2]) * spread
  flagged = redis.call('ZCOUNT', KEYS[2], '-inf', string.format('(%.0f', fence * unit))
else
  fence = q3 + tonumber(ARGV[2]) * spread
  flagged = redis.call('ZCOUNT', KEYS[2], string.format('%.0f', (fence + 1) * unit), '+inf')
end
local first = tonumber(ARGV[3])
local last = math.min(first + tonumber(ARGV[4]), flagged) - 1
local entries, better = {}, 0
if last >= first then
  entries = redis.call(low and 'ZRANGE' or 'ZREVRANGE', KEYS[2], first, last, 'WITHSCORES')
  if low then
    better = redis.call('ZCOUNT', KEYS[2], '-inf', '(' .. entries[2])
  else
    better = redis.call('ZCOUNT', KEYS[2], '(' .. entries[2], '+inf')
  end
end
return {wm, meta, size, {q1, median, q3}, flagged, first, better, entries}
