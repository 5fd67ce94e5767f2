-- Reads of blob references.

-- name: blob_uses
-- Uses of blobs by position: of those after one, whole positions, about so many.
local key = present() .. 'uses:at'
local found = call('ZRANGEBYSCORE', key, '(' .. ARGV[1], '+inf', 'LIMIT', 0, ARGV[2])
if #found == 0 then return found end
local last = struct.unpack('>I8', found[#found])
local rest = call('ZRANGEBYSCORE', key, last, last)
while #found > 0 and struct.unpack('>I8', found[#found]) == last do found[#found] = nil end
for _, use in ipairs(rest) do found[#found + 1] = use end
return found

-- name: unused_blobs
-- Those of some blobs that are there, and that no event but those of some streams refers to.
local key, but = present() .. 'uses:of', {}
for _, number in ipairs(cmsgpack.unpack(ARGV[2])) do but[eight(number)] = true end
local function used(hash)
  local from = '[' .. hash
  while true do
    local page = call('ZRANGEBYLEX', key, from, '(' .. hash .. '\255', 'LIMIT', 0, 256)
    for _, use in ipairs(page) do
      if not but[string.sub(use, #hash + 1, #hash + 8)] then return true end
    end
    if #page < 256 then return false end
    from = '(' .. page[#page]
  end
end
local found = {}
for _, hash in ipairs(cmsgpack.unpack(ARGV[1])) do
  if call('HEXISTS', base .. 'blobs', hash) == 1 and not used(hash) then found[#found + 1] = hash end
end
return found
