-- A page of a hash in the order of its names: names and values. ARGV: hash, order, first, last, limit.
local where = ARGV[6] == 'derived' and present() or base
local names = call('ZRANGEBYLEX', where .. ARGV[2], ARGV[3], ARGV[4], 'LIMIT', 0, ARGV[5])
local found = {}
for at, name in ipairs(names) do found[at] = {name, call('HGET', where .. ARGV[1], name)} end
return found
