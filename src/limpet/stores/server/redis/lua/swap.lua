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
