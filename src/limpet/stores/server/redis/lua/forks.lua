-- The names of streams that have a base in one, and the base's version.
local found = {}
for _, fork in ipairs(call('LRANGE', base .. 'forks:' .. ARGV[1], 0, -1)) do
  local number, version = string.match(fork, '^(%d+) (%d+)$')
  found[#found + 1] = {call('HGET', base .. 'streams', number), version}
end
return found
