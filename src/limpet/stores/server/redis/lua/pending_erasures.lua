-- Pending work of erasures, of a tenant and of the store.

-- name: take_pending
-- What an erasure left to do in a tenant, by its position; nothing, or whether it can't be there any more.
local todo = call('HGET', base .. 'todo', ARGV[1])
if todo then return {'todo', todo} end
return {tonumber(call('HGET', KEYS[1], 'p') or 0) >= tonumber(ARGV[1]) and 'gone' or 'wait'}

-- name: add_pending writes no-tenant
-- Add what an erasure left to do to what is pending of the store, once. KEYS[1]: the list.
for _, entry in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  if string.match(entry, '^[^ ]*') == ARGV[1] then return 0 end
end
redis.call('RPUSH', KEYS[1], ARGV[2])
return 1

-- name: set_pending writes no-tenant
-- Put other entries in the place of the first ones, if those are as somebody saw them. KEYS[1]: the list.
local seen, rest = cmsgpack.unpack(ARGV[1]), cmsgpack.unpack(ARGV[2])
local there = redis.call('LRANGE', KEYS[1], 0, #seen - 1)
if #seen == 0 then there = {} end
for at, entry in ipairs(seen) do
  if there[at] ~= entry then return 0 end
end
for _ = 1, #seen do redis.call('LPOP', KEYS[1]) end
for at = #rest, 1, -1 do redis.call('LPUSH', KEYS[1], rest[at]) end
return 1
