-- The value of the last row of each range. KEYS[1]: the book.
local found = {}
for at, span in ipairs(cmsgpack.unpack(ARGV[1])) do
  local key = redis.call('ZREVRANGEBYLEX', KEYS[1] .. ':keys', '(' .. span[2], '[' .. span[1], 'LIMIT', 0, 1)[1]
  found[at] = {key and redis.call('HGET', KEYS[1], key)}
end
return found
