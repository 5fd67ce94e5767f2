-- Functions that begin the scripts of a tenant: `common` every one, `derived_rows` those flagged `derived`.

-- name: common
-- What every script begins with. KEYS[1] is the head of a tenant; all its keys have the same hash tag.
local base = string.sub(KEYS[1], 1, -5)
local call = redis.call

local function text(number)
  return string.format('%.0f', number)
end

-- What is derived lies under a number of its own, so that a rebuild can be put into its place at once.
local function derived(generation)
  return base .. 'd' .. (generation or '0') .. ':'
end

local function present()
  return derived(call('HGET', KEYS[1], 'g'))
end

-- A command with many arguments, in steps that Lua's stack can take.
local function many(command, key, arguments)
  for first = 1, #arguments, 1000 do
    call(command, key, unpack(arguments, first, math.min(first + 999, #arguments)))
  end
end

local function eight(number)
  return struct.pack('>I8', number)
end

-- The number of elements at the beginning of a list of rising numbers that are not above one.
local function up_to(key, number)
  local low, high = 0, call('LLEN', key)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if tonumber(call('LINDEX', key, middle)) <= number then low = middle + 1 else high = middle end
  end
  return low
end

-- A stream by its name, or by its number as text: number, name, first version, own events; nothing if there is none.
local function stream_of(name, number)
  if name then number = call('HGET', base .. 'names', name) else name = call('HGET', base .. 'streams', number) end
  if not number or not name then return nil end
  return number, name, tonumber(call('HGET', base .. 'firsts', number) or 1), call('LLEN', base .. 'own:' .. number)
end

-- Its mark holds only while name and number lead to one another.
local function told(number, name, first, count)
  local whole = call('HGET', base .. 'names', name) == number and call('HGET', base .. 'streams', number) == name
  local mark = whole and call('HGET', base .. 'marks', number)
  return {number, name, first, first + count - 1, call('LRANGE', base .. 'bases:' .. number, 0, -1), mark or ''}
end

-- Entries of the log with what is kept beside them: payload and salt, what became of them, the stream's name.
local function whole(entries)
  local names, blanks = {}, call('EXISTS', base .. 'erased') == 1
  local rows = {}
  for at, entry in ipairs(entries) do
    local position, fields = string.match(entry[1], '^%d+'), entry[2]
    local number = fields[2]
    if names[number] == nil then names[number] = call('HGET', base .. 'streams', number) end
    rows[at] = {
      entry[1], fields, call('HGET', base .. 'body', position),
      blanks and call('HGET', base .. 'erased', position), names[number],
    }
  end
  return rows
end

-- name: derived_rows
-- Putting and dropping what is derived from the log; `d` is where it lies.

-- A row begins with where it is indexed: score, member, names of indexes.
local function places(row)
  local size = struct.unpack('>I4', row)
  return cmsgpack.unpack(string.sub(row, 5, 4 + size)), string.sub(row, 1, 4 + size)
end

-- The same of a row that is there. One that is damaged must not stop what has begun: it says nothing.
local function old_places(row)
  local fine, was, began = pcall(places, row)
  if not fine or type(was) ~= 'table' then return {}, nil end
  return was, began
end

local function drop_row(d, id)
  local row = call('HGET', d .. 'rows', id)
  if not row then return end
  local was = old_places(row)
  for at = 3, #was do call('ZREM', d .. was[at], was[2]) end
  call('HDEL', d .. 'rows', id)
  call('ZREM', d .. 'rows:id', id)
end

-- Put rows, each by its id; of one that comes twice the last. Rows that share an index go into it together.
local function put_rows(d, rows)
  if #rows == 0 then return end
  local last, ids = {}, {}
  for _, row in ipairs(rows) do
    if not last[row[1]] then ids[#ids + 1] = row[1] end
    last[row[1]] = row[2]
  end
  local added, new, kept = {}, {}, {}
  for _, id in ipairs(ids) do
    local row, old = last[id], call('HGET', d .. 'rows', id)
    local now, beginning = places(row)
    local was, began = {}, nil
    if old then was, began = old_places(old) else new[#new + 1] = 0; new[#new + 1] = id end
    if began ~= beginning then
      local score, member, stays = now[1], now[2], {}
      for at = 3, #now do
        local index = now[at]
        stays[index] = was[2] == member
        local list = added[index]
        if not list then list = {}; added[index] = list end
        list[#list + 1] = score
        list[#list + 1] = member
      end
      for at = 3, #was do
        if not stays[was[at]] then call('ZREM', d .. was[at], was[2]) end
      end
    end
    kept[#kept + 1] = id
    kept[#kept + 1] = row
  end
  for index, list in pairs(added) do many('ZADD', d .. index, list) end
  many('ZADD', d .. 'rows:id', new)
  many('HSET', d .. 'rows', kept)
end

local function put_claims(d, claims)
  for _, claim in ipairs(claims) do
    call('HSET', d .. 'claims:' .. text(claim[1]), claim[2], claim[3])
  end
end

-- Add the streams of events that blobs are used by; whether all of those are in the log.
local function find_streams(uses, numbers)
  for _, use in ipairs(uses) do
    if not numbers[use[1]] then
      local at = text(use[1]) .. '-0'
      local entry = call('XRANGE', base .. 'log', at, at)[1]
      if not entry then return false end
      numbers[use[1]] = tonumber(entry[2][2])
    end
  end
  return true
end

-- Each use lies in three orders: by position, by blob, by stream.
local function put_uses(d, uses, numbers)
  for _, use in ipairs(uses) do
    local position, hash = use[1], use[2]
    local p, n = eight(position), eight(numbers[position])
    call('ZADD', d .. 'uses:at', position, p .. n .. hash)
    call('ZADD', d .. 'uses:of', 0, hash .. n .. p)
    call('ZADD', d .. 'uses:by', 0, n .. p .. hash)
  end
end

local function drop_uses(d, number)
  local n, after = eight(number), eight(number + 1)
  for _, use in ipairs(call('ZRANGEBYLEX', d .. 'uses:by', '[' .. n, '(' .. after)) do
    local p, hash = string.sub(use, 9, 16), string.sub(use, 17)
    call('ZREM', d .. 'uses:at', p .. n .. hash)
    call('ZREM', d .. 'uses:of', hash .. n .. p)
    call('ZREM', d .. 'uses:by', use)
  end
end

local function put_snapshots(d, snapshots)
  for _, snapshot in ipairs(snapshots) do
    local number = call('HGET', base .. 'names', snapshot[1])
    if number then call('HSET', d .. 'snapshots', number, snapshot[2]) end
  end
end
