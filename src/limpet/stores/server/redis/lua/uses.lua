-- Uses of blobs by position: of those after one, whole positions, about so many.
local key = present() .. 'uses:at'
local found = call('ZRANGEBYSCORE', key, '(' .. ARGV[1], '+inf', 'LIMIT', 0, ARGV[2])
if #found == 0 then return found end
local last = struct.unpack('>I8', found[#found])
local rest = call('ZRANGEBYSCORE', key, last, last)
while #found > 0 and struct.unpack('>I8', found[#found]) == last do found[#found] = nil end
for _, use in ipairs(rest) do found[#found + 1] = use end
return found
