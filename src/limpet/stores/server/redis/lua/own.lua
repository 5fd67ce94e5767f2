-- A stream by its name or number, and its own events of some versions: those first, or the newest.
local number, name, first, count = stream_of(ARGV[1] == 'name' and ARGV[2], ARGV[2])
if not number then return false end
local low, high, limit = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
low, high = math.max(low, first), math.min(high, first + count - 1)
if ARGV[6] == 'newest' then low = math.max(low, high - limit + 1) else high = math.min(high, low + limit - 1) end
local entries = {}
if low <= high then
  for _, position in ipairs(call('LRANGE', base .. 'own:' .. number, low - first, high - first)) do
    local entry = call('XRANGE', base .. 'log', position .. '-0', position .. '-0')[1]
    if not entry then return {told(number, name, first, count), position} end
    entries[#entries + 1] = entry
  end
end
return {told(number, name, first, count), whole(entries)}
