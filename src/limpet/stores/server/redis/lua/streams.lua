-- Reads of streams, events and claims.

-- name: own_events
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

-- name: streams
-- Streams by number, those after one.
local from = up_to(base .. 'numbers', tonumber(ARGV[1]))
local found = {}
for _, number in ipairs(call('LRANGE', base .. 'numbers', from, from + tonumber(ARGV[2]) - 1)) do
  local _, name, first, count = stream_of(nil, number)
  if name then found[#found + 1] = told(number, name, first, count) end
end
return found

-- name: version_at
-- The version of a stream's last own event up to a position; 0 if it had none.
local number, _, first = stream_of(ARGV[1])
if not number then return 0 end
local count = up_to(base .. 'own:' .. number, tonumber(ARGV[2]))
return count > 0 and first + count - 1 or 0

-- name: find_ordinal
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

-- name: forks
-- The names of streams that have a base in one, and the base's version.
local found = {}
for _, fork in ipairs(call('LRANGE', base .. 'forks:' .. ARGV[1], 0, -1)) do
  local number, version = string.match(fork, '^(%d+) (%d+)$')
  found[#found + 1] = {call('HGET', base .. 'streams', number), version}
end
return found

-- name: feed
-- Events after a position, in order.
return whole(call('XRANGE', base .. 'log', '(' .. ARGV[1] .. '-0', '+', 'COUNT', ARGV[2]))

-- name: claims
-- Those of some claims that some stretches have: stretch, text, version. Without claims: how many the stretches have.
local d, asked, stretches = present(), cmsgpack.unpack(ARGV[1]), cmsgpack.unpack(ARGV[2])
local found, count = {}, 0
for _, stretch in ipairs(stretches) do
  local key = d .. 'claims:' .. text(stretch)
  if ARGV[3] == 'count' then
    count = count + call('HLEN', key)
  else
    for _, claim in ipairs(asked) do
      local version = call('HGET', key, claim)
      if version then found[#found + 1] = {stretch, claim, version} end
    end
  end
end
return ARGV[3] == 'count' and count or found
