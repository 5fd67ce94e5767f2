-- The change of a tenant, and the advisory lock.

-- name: apply writes derived
-- One change to one tenant: compared with its head, looked through for what must be new, then written.
-- Nothing that can fail comes after the first write, which is the log's own: it refuses a position that is not next.
local change = cmsgpack.unpack(ARGV[1])
local before, after = change[1], change[2]
local streams, bases, rows, claims, keys = change[3], change[4], change[5], change[6], change[7]
local blobs, uses, projections, snapshots = change[8], change[9], change[10], change[11]
local rare = change[12]
local blanks, renames = rare[1] or {}, rare[2] or {}
local drop_projections, drop_claims, drop_snapshots = rare[3] or {}, rare[4] or {}, rare[5] or {}
local dropped_uses, drop_keys, drop_blobs = rare[6] or {}, rare[7] or {}, rare[8] or {}

local head = call('HMGET', KEYS[1], 'p', 'l', 'e', 'g')
local position, link, epoch = tonumber(head[1] or 0), head[2] or string.rep('\0', 32), tonumber(head[3] or 0)
if position ~= before[1] or link ~= before[2] or epoch ~= before[3] then
  return {'moved', position, link, epoch}
end
local d = derived(head[4])

-- What must be new, once what is dropped has gone.
local function set_of(list)
  local set = {}
  for _, each in ipairs(list) do set[each] = true end
  return set
end
local renamed = {}
for _, rename in ipairs(renames) do renamed[text(rename[1])] = true end
local next_version = {}
for _, stream in ipairs(streams) do
  local there = call('HGET', base .. 'names', stream[2])
  if there and not renamed[there] then return {'taken'} end
  if call('HEXISTS', base .. 'streams', text(stream[1])) == 1 then return {'taken'} end
  next_version[stream[1]] = stream[3]
end
for _, row in ipairs(rows) do
  local number, version = row[2], row[3]
  if not next_version[number] then
    local count = call('LLEN', base .. 'own:' .. text(number))
    if count == 0 then return redis.error_reply('LIMPET a row of a stream that is not there') end
    next_version[number] = count + 1
    -- Most streams begin at version 1.
    if version ~= count + 1 then
      next_version[number] = count + tonumber(call('HGET', base .. 'firsts', text(number)) or 1)
    end
  end
  if version ~= next_version[number] then return {'taken'} end
  next_version[number] = version + 1
end
local gone, seen = set_of(drop_claims), {}
for _, claim in ipairs(claims) do
  local stretch = text(claim[1])
  local name = stretch .. ':' .. claim[2]
  if seen[name] then return {'taken'} end
  seen[name] = true
  if not gone[claim[1]] and call('HEXISTS', d .. 'claims:' .. stretch, claim[2]) == 1 then return {'taken'} end
end
gone, seen = set_of(drop_keys), {}
for _, key in ipairs(keys) do
  if seen[key[1]] then return {'taken'} end
  seen[key[1]] = true
  if not gone[key[1]] and call('HEXISTS', base .. 'keys', key[1]) == 1 then return {'taken'} end
end
local numbers = {}
for _, row in ipairs(rows) do numbers[row[1]] = row[2] end
if not find_streams(uses, numbers) then return redis.error_reply('LIMPET an event is not in the log') end

-- The log.
local own, bodies = {}, {}
for _, row in ipairs(rows) do
  local at, number = row[1], row[2]
  local added = redis.pcall('XADD', base .. 'log', text(at) .. '-0',
    'n', number, 'v', row[3], 'o', row[4], 'h', row[5], 'd', row[6], 'l', row[7])
  if type(added) == 'table' and added.err then return redis.error_reply('LIMPET ' .. added.err) end
  if row[8] then
    bodies[#bodies + 1] = at
    bodies[#bodies + 1] = row[8]
  end
  local list = own[number]
  if list then list[#list + 1] = at else own[number] = {at} end
end
many('HSET', base .. 'body', bodies)
for number, list in pairs(own) do many('RPUSH', base .. 'own:' .. text(number), list) end

-- What goes.
for _, blank in ipairs(blanks) do
  call('HDEL', base .. 'body', blank[1])
  call('HSET', base .. 'erased', blank[1], blank[2])
end
for _, rename in ipairs(renames) do
  local number = text(rename[1])
  local old = call('HGET', base .. 'streams', number)
  if old and call('HGET', base .. 'names', old) == number then call('HDEL', base .. 'names', old) end
  call('HSET', base .. 'streams', number, rename[2])
  call('HSET', base .. 'names', rename[2], number)
  call('HSET', base .. 'marks', number, rename[3])
end
for _, id in ipairs(drop_projections) do drop_row(d, id) end
for _, stretch in ipairs(drop_claims) do call('UNLINK', d .. 'claims:' .. text(stretch)) end
for _, number in ipairs(drop_snapshots) do call('HDEL', d .. 'snapshots', text(number)) end
for _, number in ipairs(dropped_uses) do drop_uses(d, number) end
for _, key in ipairs(drop_keys) do
  call('HDEL', base .. 'keys', key)
  for _, order in ipairs({'text', 'first', 'time'}) do call('ZREM', base .. 'keys:' .. order, key) end
end
for _, hash in ipairs(drop_blobs) do
  call('HDEL', base .. 'blobs', hash)
  call('ZREM', base .. 'blobs:hash', hash)
end

-- What comes.
for _, stream in ipairs(streams) do
  local number = text(stream[1])
  call('HSET', base .. 'names', stream[2], number)
  call('HSET', base .. 'streams', number, stream[2])
  call('HSET', base .. 'marks', number, stream[4])
  call('RPUSH', base .. 'numbers', number)
  if stream[3] ~= 1 then call('HSET', base .. 'firsts', number, stream[3]) end
end
for _, one in ipairs(bases) do
  local number, source = text(one[1]), text(one[3])
  call('RPUSH', base .. 'bases:' .. number, one[2])
  if number ~= source then call('RPUSH', base .. 'forks:' .. source, number .. ' ' .. text(one[4])) end
end
put_claims(d, claims)
for _, key in ipairs(keys) do
  call('HSET', base .. 'keys', key[1], key[2])
  call('ZADD', base .. 'keys:text', 0, key[1])
  call('ZADD', base .. 'keys:first', key[3], key[1])
  call('ZADD', base .. 'keys:time', key[4], key[1])
end
for _, blob in ipairs(blobs) do
  if call('HGET', base .. 'blobs', blob[1]) ~= blob[2] then
    call('HSET', base .. 'blobs', blob[1], blob[2])
    call('ZADD', base .. 'blobs:hash', 0, blob[1])
  end
end
put_uses(d, uses, numbers)
put_rows(d, projections)
put_snapshots(d, snapshots)
if rare[9] then call('HSET', base .. 'todo', after[1], rare[9]) end
if after[1] ~= before[1] or after[3] ~= before[3] then
  call('HSET', KEYS[1], 'p', after[1], 'l', after[2], 'e', after[3])
  -- Who may not publish is heard of later, by those who look.
  redis.pcall('PUBLISH', ARGV[2], ARGV[3])
end
-- Whoever wins every time hears of nobody otherwise. One's own guard tells nothing.
local guard = redis.pcall('GET', base .. 'guard')
return {type(guard) == 'string' and guard ~= ARGV[4] and 'wanted' or 'ok'}

-- name: release_lock writes repeatable
-- Give a guard back, if it is one's own.
return call('GET', base .. 'guard') == ARGV[1] and call('DEL', base .. 'guard') or 0
