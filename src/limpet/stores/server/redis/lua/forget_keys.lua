-- Drop some of the keys that were used before a moment; return how many.
local old = call('ZRANGEBYSCORE', base .. 'keys:time', '-inf', '(' .. ARGV[1], 'LIMIT', 0, ARGV[2])
if #old > 0 then
  call('HDEL', base .. 'keys', unpack(old))
  for _, order in ipairs({'text', 'first', 'time'}) do call('ZREM', base .. 'keys:' .. order, unpack(old)) end
end
return #old
