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
