-- The lowest own version within low … high whose event has at least an ordinal; 0: none. Ordinals never fall.
local number, _, first, count = stream_of(nil, ARGV[1])
if not number then return 0 end
local low, high, ordinal = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
low, high = math.max(low, first), math.min(high, first + count - 1) + 1
local last = high
while low < high do
  local middle = math.floor((low + high) / 2)
  local position = call('LINDEX', base .. 'own:' .. number, middle - first)
  local entry = call('XRANGE', base .. 'log', position .. '-0', position .. '-0')[1]
  if not entry or tonumber(entry[2][6]) < ordinal then low = middle + 1 else high = middle end
end
return low < last and low or 0
