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
