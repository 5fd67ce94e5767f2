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

local function put_row(d, id, row)
  local old = call('HGET', d .. 'rows', id)
  local now, beginning = places(row)
  local same = false
  if old then
    local was, began = old_places(old)
    same = began == beginning
    if not same then
      local stays = {}
      for at = 3, #now do stays[now[at]] = was[2] == now[2] end
      for at = 3, #was do
        if not stays[was[at]] then call('ZREM', d .. was[at], was[2]) end
      end
    end
  else
    call('ZADD', d .. 'rows:id', 0, id)
  end
  if not same then
    for at = 3, #now do call('ZADD', d .. now[at], now[1], now[2]) end
  end
  call('HSET', d .. 'rows', id, row)
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
