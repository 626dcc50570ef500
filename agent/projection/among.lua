-- The scores of some members of one window, in one atomic look.
--
-- KEYS  watermark, sorted set, meta
-- ARGV  members, at most 5,000
-- Returns {watermark fields, meta fields, size, scores}; only the first two where either is missing. A
-- member that is not there has no score.
local wm = redis.call('HMGET', KEYS[1], 'ring', 'region', 'agent', 'log', 'lsn', 'as_of')
local meta = redis.call('HMGET', KEYS[3], 'b', 'ties', 'epoch_ms', 'tick_ms', 'order', 'generation', 'shape',
  'window', 'start_ms', 'end_ms', 'as_of')
if not wm[1] or not meta[1] then
  return {wm, meta}
end
return {wm, meta, redis.call('ZCARD', KEYS[2]), redis.call('ZMSCORE', KEYS[2], unpack(ARGV))}
