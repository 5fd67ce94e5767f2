-- Keys whose first … last has one of some positions. What keys were used for does not overlap.
local found, seen = {}, {}
for _, position in ipairs(cmsgpack.unpack(ARGV[1])) do
  local key = call('ZREVRANGEBYSCORE', base .. 'keys:first', position, '-inf', 'LIMIT', 0, 1)[1]
  if key and not seen[key] then
    local last = string.match(call('HGET', base .. 'keys', key) or '', '^%d+ (%d+) ')
    if last and tonumber(last) >= position then
      seen[key] = true
      found[#found + 1] = key
    end
  end
end
return found
