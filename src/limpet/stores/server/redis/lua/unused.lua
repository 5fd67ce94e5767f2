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
