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
