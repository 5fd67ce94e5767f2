-- Idempotency keys and notes.

-- name: keys_covering
-- Keys whose first … last has one of some positions. What keys were used for does not overlap.
local found, seen = {}, {}
for _, position in ipairs(cmsgpack.unpack(ARGV[1])) do
  local key = call('ZREVRANGEBYSCORE', base .. 'keys:first', position, '-inf', 'LIMIT', 0, 1)[1]
  if key and not seen[key] then
    local last = string.match(call('HGET', base .. 'keys', key) or '', '^%d+ (%d+) ')
    if last and tonumber(last) >= position then
      seen[key] = true
      found[#found + 1] = key
    end
  end
end
return found

-- name: delete_keys writes
-- Drop some of the keys that were used before a moment; return how many.
local old = call('ZRANGEBYSCORE', base .. 'keys:time', '-inf', '(' .. ARGV[1], 'LIMIT', 0, ARGV[2])
if #old > 0 then
  call('HDEL', base .. 'keys', unpack(old))
  for _, order in ipairs({'text', 'first', 'time'}) do call('ZREM', base .. 'keys:' .. order, unpack(old)) end
end
return #old

-- name: put_note writes
-- Put or drop a note if it is at a version. A version is never given twice: they are counted together.
local version = 0
local before = call('HGET', base .. 'notes', ARGV[1])
if before then version = tonumber(string.match(before, '^%d+') or -1) end
if version ~= tonumber(ARGV[2]) then return {'no'} end
if ARGV[3] == 'drop' then
  call('HDEL', base .. 'notes', ARGV[1])
  call('ZREM', base .. 'notes:name', ARGV[1])
  return {'yes'}
end
local count = tonumber(call('HGET', KEYS[1], 'n') or 0)
if count + 1 ~= tonumber(ARGV[4]) then return {'count', count} end
call('HSET', KEYS[1], 'n', ARGV[4])
call('HSET', base .. 'notes', ARGV[1], ARGV[5])
call('ZADD', base .. 'notes:name', 0, ARGV[1])
return {'yes'}
