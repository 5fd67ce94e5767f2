-- A rebuild of derived rows: written under a generation number of its own, then installed.

-- name: begin_rebuild writes
-- Begin to derive anew beside what is there, if the head is still the one that it was derived for; return the number
-- that it lies under, 0 if the head is another: what was erased since may be among what was derived.
local head = call('HMGET', KEYS[1], 'p', 'l', 'e')
local link = head[2] or string.rep('\0', 32)
local position, epoch = tonumber(head[1] or 0), tonumber(head[3] or 0)
if position ~= tonumber(ARGV[1]) or link ~= ARGV[2] or epoch ~= tonumber(ARGV[3]) then return 0 end
local number = call('HINCRBY', KEYS[1], 'c', 1)
call('ZADD', base .. 'builds', call('TIME')[1], number)
return number

-- name: write_rebuild writes derived
-- Put a part of what is derived anew; 0 if somebody has cleaned it away, as what a dead process left.
if tonumber(call('ZSCORE', base .. 'builds', ARGV[1]) or 0) == 0 then return 0 end
local d, part = derived(ARGV[1]), cmsgpack.unpack(ARGV[2])
local numbers = {}
if not find_streams(part[2], numbers) then return redis.error_reply('LIMPET an event is not in the log') end
put_claims(d, part[1])
put_uses(d, part[2], numbers)
put_rows(d, part[3])
put_snapshots(d, part[4])
call('ZADD', base .. 'builds', call('TIME')[1], ARGV[1])
return 1

-- name: install_rebuild writes
-- Put what was derived anew into the place of what was, if the head is still the same; what was is to be cleaned away.
local head = call('HMGET', KEYS[1], 'p', 'l', 'e', 'g')
local link = head[2] or string.rep('\0', 32)
local position, epoch = tonumber(head[1] or 0), tonumber(head[3] or 0)
if position ~= tonumber(ARGV[2]) or link ~= ARGV[3] or epoch ~= tonumber(ARGV[4]) then return 0 end
if tonumber(call('ZSCORE', base .. 'builds', ARGV[1]) or 0) == 0 then return 0 end
call('HSET', KEYS[1], 'g', ARGV[1], 'e', epoch + 1)
call('ZREM', base .. 'builds', ARGV[1])
call('ZADD', base .. 'builds', 0, head[4] or '0')
redis.pcall('PUBLISH', ARGV[5], ARGV[6])
return 1

-- name: clean_rebuild writes derived
-- Take away some of what was derived under a number that nobody uses any more; 0: it is all gone.
local head = call('HGET', KEYS[1], 'g') or '0'
if ARGV[1] == head then return 0 end
local d, left = derived(ARGV[1]), 0
-- So that whoever is still at it stops.
call('ZADD', base .. 'builds', 0, ARGV[1])
for _, id in ipairs(call('ZRANGE', d .. 'rows:id', 0, ARGV[2] - 1)) do
  drop_row(d, id)
  call('ZREM', d .. 'rows:id', id)
  left = 1
end
local from = tonumber(call('HGET', base .. 'cleaning', ARGV[1]) or 0)
local numbers = call('LRANGE', base .. 'numbers', from, from + ARGV[2] - 1)
for _, number in ipairs(numbers) do
  call('UNLINK', d .. 'claims:' .. number)
  for _, one in ipairs(call('LRANGE', base .. 'bases:' .. number, 0, -1)) do
    call('UNLINK', d .. 'claims:' .. text(cmsgpack.unpack(one)[1]))
  end
  left = 1
end
if #numbers > 0 then call('HSET', base .. 'cleaning', ARGV[1], from + #numbers) end
if left == 0 then
  for _, rest in ipairs({'rows', 'rows:id', 'uses:at', 'uses:of', 'uses:by', 'snapshots'}) do call('UNLINK', d .. rest) end
  call('HDEL', base .. 'cleaning', ARGV[1])
  call('ZREM', base .. 'builds', ARGV[1])
end
return left

-- name: list_abandoned_rebuilds
-- What was derived under numbers that nobody works at any more: replaced, or left by a process that died.
local now = tonumber(call('TIME')[1])
return call('ZRANGEBYSCORE', base .. 'builds', '-inf', now - tonumber(ARGV[1]))
