-- Tables of the index store.

-- name: scan_table no-tenant
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

-- name: last_values no-tenant
-- The value of the last row of each range. KEYS[1]: the book.
local found = {}
for at, span in ipairs(cmsgpack.unpack(ARGV[1])) do
  local key = redis.call('ZREVRANGEBYLEX', KEYS[1] .. ':keys', '(' .. span[2], '[' .. span[1], 'LIMIT', 0, 1)[1]
  found[at] = {key and redis.call('HGET', KEYS[1], key)}
end
return found

-- name: write_tables writes no-tenant
-- Changes of books in order, if some rows are as expected. KEYS[1]: what all keys of the shelf begin with.
for _, row in ipairs(cmsgpack.unpack(ARGV[1])) do
  if redis.call('HGET', KEYS[1] .. row[1], row[2]) ~= row[3] then return 0 end
end
for _, change in ipairs(cmsgpack.unpack(ARGV[2])) do
  local book = KEYS[1] .. change[2]
  if change[1] == 'put' then
    redis.call('HSET', book, change[3], change[4])
    redis.call('ZADD', book .. ':keys', 0, change[3])
    redis.call('SADD', KEYS[1] .. 'books', change[2])
  else
    for _, key in ipairs(redis.call('ZRANGEBYLEX', book .. ':keys', '[' .. change[3], '(' .. change[4])) do
      redis.call('HDEL', book, key)
      redis.call('ZREM', book .. ':keys', key)
    end
  end
end
return 1
