-- Rows of a book with first <= key < last, by key or from the end. KEYS[1]: the book.
local keys
if ARGV[4] == 'back' then
  keys = redis.call('ZREVRANGEBYLEX', KEYS[1] .. ':keys', '(' .. ARGV[2], '[' .. ARGV[1], 'LIMIT', 0, ARGV[3])
else
  keys = redis.call('ZRANGEBYLEX', KEYS[1] .. ':keys', '[' .. ARGV[1], '(' .. ARGV[2], 'LIMIT', 0, ARGV[3])
end
local rows = {}
for _, key in ipairs(keys) do
  local value = redis.call('HGET', KEYS[1], key)
  if value then rows[#rows + 1] = {key, value} end
end
return rows
