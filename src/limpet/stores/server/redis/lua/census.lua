-- How many rows of a part of them are of which kind and status. ARGV: where to go on, about how many rows.
local page = call('HSCAN', present() .. 'rows', ARGV[1], 'COUNT', ARGV[2])
local found, counts = {}, {}
for at = 1, #page[2], 2 do
  local kind, status = string.match(page[2][at], '^(.-)%z%z') or '', ''
  local was = old_places(page[2][at + 1])
  for each = 3, #was do
    if string.sub(was[each], 1, 2) == 's:' then status = string.match(was[each], '[^:]*$') end
  end
  local name = kind .. ':' .. status
  if not counts[name] then found[#found + 1] = {kind, status, name} end
  counts[name] = (counts[name] or 0) + 1
end
for _, one in ipairs(found) do one[3] = counts[one[3]] end
return {page[1], found}
