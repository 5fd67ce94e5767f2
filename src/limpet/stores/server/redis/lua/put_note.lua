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
