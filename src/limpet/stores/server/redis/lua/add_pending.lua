-- Add what an erasure left to do to what is pending of the store, once. KEYS[1]: the list.
for _, entry in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  if string.match(entry, '^[^ ]*') == ARGV[1] then return 0 end
end
redis.call('RPUSH', KEYS[1], ARGV[2])
return 1
