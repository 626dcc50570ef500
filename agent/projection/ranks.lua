-- Parts of one window of a board, with everything needed to read them, in one atomic look.
--
-- KEYS  watermark, sorted set, meta
-- ARGV  for each part four: what, two arguments, how many
--         'page'    how many to leave out from the best, '',      how many
--         'member'  a member, '',                                 how many on each side of it
--         'after'   a composite score, a member (of a row),       how many behind that row
--         'before'  the same,                                     how many before that row
-- Returns {watermark fields, meta fields, size, parts}; only the first two where either is missing.
-- A part is {position of its first entry, how many are strictly better than that one (ties `shared`
-- only), members and scores in turn}; the position is -1 where the member is not there. A row's place
-- is found by its composite and its name, so it may be gone meanwhile, or stand elsewhere.
local wm = redis.call('HMGET', KEYS[1], 'ring', 'region', 'agent', 'log', 'lsn', 'as_of')
local meta = redis.call('HMGET', KEYS[3], 'b', 'ties', 'epoch_ms', 'tick_ms', 'order', 'generation', 'shape',
  'window', 'start_ms', 'end_ms', 'as_of')
if not wm[1] or not meta[1] then
  return {wm, meta}
end
local set, low, shared = KEYS[2], meta[5] == 'low', meta[2] == 'shared'
local size = redis.call('ZCARD', set)

local function better_than(score)
  if low then
    return redis.call('ZCOUNT', set, '-inf', '(' .. score)
  end
  return redis.call('ZCOUNT', set, '(' .. score, '+inf')
end

-- Whether a name stands before another one of the same score: by bytes, whatever the locale.
local function stands_before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then
      return (x < y) == low
    end
  end
  return #a ~= #b and (#a < #b) == low
end

-- How many stand before a row, and whether the row itself is there.
local function place_of(score, member)
  local from = better_than(score)
  local to = from + redis.call('ZCOUNT', set, score, score)
  while from < to do
    local middle = math.floor((from + to) / 2)
    local name = redis.call(low and 'ZRANGE' or 'ZREVRANGE', set, middle, middle)[1]
    if stands_before(name, member) then
      from = middle + 1
    elseif name == member then
      return middle, true
    else
      to = middle
    end
  end
  return from, false
end

local parts = {}
for at = 1, #ARGV, 4 do
  local what, one, other, many = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  local first, last = 0, -1
  if what == 'page' then
    first = tonumber(one)
    last = first + many - 1
  elseif what == 'member' then
    local place = redis.call(low and 'ZRANK' or 'ZREVRANK', set, one)
    if place then
      first = math.max(0, place - many)
      last = place + many
    else
      first = -1
    end
  else
    local place, there = place_of(one, other)
    if what == 'after' then
      first = there and place + 1 or place
      last = first + many - 1
    else
      first = math.max(0, place - many)
      last = place - 1
    end
  end
  local entries = {}
  if first >= 0 and last >= first then
    entries = redis.call(low and 'ZRANGE' or 'ZREVRANGE', set, first, last, 'WITHSCORES')
  end
  local better = 0
  if shared and #entries > 0 then
    better = better_than(entries[2])
  end
  parts[#parts + 1] = {first, better, entries}
end
return {wm, meta, size, parts}
