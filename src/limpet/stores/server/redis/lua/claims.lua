-- Those of some claims that some stretches have: stretch, text, version. Without claims: how many the stretches have.
local d, asked, stretches = present(), cmsgpack.unpack(ARGV[1]), cmsgpack.unpack(ARGV[2])
local found, count = {}, 0
for _, stretch in ipairs(stretches) do
  local key = d .. 'claims:' .. text(stretch)
  if ARGV[3] == 'count' then
    count = count + call('HLEN', key)
  else
    for _, claim in ipairs(asked) do
      local version = call('HGET', key, claim)
      if version then found[#found + 1] = {stretch, claim, version} end
    end
  end
end
return ARGV[3] == 'count' and count or found
