-- What was derived under numbers that nobody works at any more: replaced, or left by a process that died.
local now = tonumber(call('TIME')[1])
return call('ZRANGEBYSCORE', base .. 'builds', '-inf', now - tonumber(ARGV[1]))
