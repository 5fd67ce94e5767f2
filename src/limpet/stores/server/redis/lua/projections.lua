-- Reads of projections and snapshots, and pages of any ordered hash.

-- name: projection
-- One row of what is derived.
return call('HGET', present() .. ARGV[1], ARGV[2])

-- name: query
-- A page of rows, newest first, by the smallest of the indexes that it names; the others are asked row by row.
local asked, d = cmsgpack.unpack(ARGV[1]), present()
local limit, offset, beginning = asked[1], asked[2], asked[3]
local high_score, high_member, low_score, low_member = tonumber(asked[4]), asked[5], tonumber(asked[6]), asked[7]
local indexes, absent = asked[8], asked[9]

local lead, least
for _, name in ipairs(indexes) do
  local size = call('ZCARD', d .. name)
  if size == 0 then return {} end
  if not least or size < least then lead, least = name, size end
end
local others = {}
for _, name in ipairs(indexes) do
  if name ~= lead then others[#others + 1] = d .. name end
end
lead = d .. lead

local function meets(member)
  for _, other in ipairs(others) do
    if not call('ZSCORE', other, member) then return false end
  end
  return true
end

-- Whether a row is in no index that begins so: what it is asked for is that it has none.
local function lacks(row)
  if #absent == 0 then return true end
  local size = struct.unpack('>I4', row)
  local was = cmsgpack.unpack(string.sub(row, 5, 4 + size))
  for at = 3, #was do
    for _, start in ipairs(absent) do
      if string.sub(was[at], 1, #start) == start then return false end
    end
  end
  return true
end

local at, exact = 0, asked[4] == '+inf'
if not exact then
  local rank = call('ZREVRANK', lead, high_member)
  exact = rank and tonumber(call('ZSCORE', lead, high_member)) == high_score
  at = exact and rank + 1 or call('ZCOUNT', lead, '(' .. asked[4], '+inf')
end
if exact and #others == 0 and #absent == 0 then at, offset = at + offset, 0 end

local found = {}
local step = math.max(16, math.min(256, limit + offset))
while true do
  local page = call('ZREVRANGE', lead, at, at + step - 1, 'WITHSCORES')
  for each = 1, #page, 2 do
    local member, score = page[each], tonumber(page[each + 1])
    if score < low_score or (score == low_score and member < low_member) then return found end
    local before = exact or score < high_score or (score == high_score and member < high_member)
    if before and meets(member) then
      -- A member is a byte, for a moment beyond what a score holds eight more, and the id.
      local id = string.sub(member, string.byte(member) == 0 and 2 or 10)
      local row = call('HGET', d .. 'rows', beginning .. id)
      if row and lacks(row) then
        if offset > 0 then offset = offset - 1 else found[#found + 1] = row end
        if #found >= limit then return found end
      end
    end
  end
  if #page < 2 * step then return found end
  at = at + step
end

-- name: count_by_status derived
-- How many rows of a part of them are of which kind and status. ARGV: where to go on, about how many rows.
local page = call('HSCAN', present() .. 'rows', ARGV[1], 'COUNT', ARGV[2])
local found, counts = {}, {}
for at = 1, #page[2], 2 do
  local kind, status = string.match(page[2][at], '^(.-)%z%z') or '', ''
  local was = old_places(page[2][at + 1])
  for each = 3, #was do
    if string.sub(was[each], 1, 2) == 's:' then status = string.match(was[each], '[^:]*$') end
  end
  local name = kind .. ':' .. status
  if not counts[name] then found[#found + 1] = {kind, status, name} end
  counts[name] = (counts[name] or 0) + 1
end
for _, one in ipairs(found) do one[3] = counts[one[3]] end
return {page[1], found}

-- name: snapshot
-- The newest snapshot of a stream.
local number = call('HGET', base .. 'names', ARGV[1])
return number and call('HGET', present() .. 'snapshots', number)

-- name: sorted_page
-- A page of a hash in the order of its names: names and values. ARGV: hash, order, first, last, limit.
local where = ARGV[6] == 'derived' and present() or base
local names = call('ZRANGEBYLEX', where .. ARGV[2], ARGV[3], ARGV[4], 'LIMIT', 0, ARGV[5])
local found = {}
for at, name in ipairs(names) do found[at] = {name, call('HGET', where .. ARGV[1], name)} end
return found
