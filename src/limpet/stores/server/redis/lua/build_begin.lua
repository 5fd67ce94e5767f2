-- Begin to derive anew beside what is there, if the head is still the one that it was derived for; return the number
-- that it lies under, 0 if the head is another: what was erased since may be among what was derived.
local head = call('HMGET', KEYS[1], 'p', 'l', 'e')
local link = head[2] or string.rep('\0', 32)
local position, epoch = tonumber(head[1] or 0), tonumber(head[3] or 0)
if position ~= tonumber(ARGV[1]) or link ~= ARGV[2] or epoch ~= tonumber(ARGV[3]) then return 0 end
local number = call('HINCRBY', KEYS[1], 'c', 1)
call('ZADD', base .. 'builds', call('TIME')[1], number)
return number
