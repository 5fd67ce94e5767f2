-- Streams by number, those after one.
local from = up_to(base .. 'numbers', tonumber(ARGV[1]))
local found = {}
for _, number in ipairs(call('LRANGE', base .. 'numbers', from, from + tonumber(ARGV[2]) - 1)) do
  local _, name, first, count = stream_of(nil, number)
  if name then found[#found + 1] = told(number, name, first, count) end
end
return found
