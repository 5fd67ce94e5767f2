-- Put a part of what is derived anew; 0 if somebody has cleaned it away, as what a dead process left.
if tonumber(call('ZSCORE', base .. 'builds', ARGV[1]) or 0) == 0 then return 0 end
local d, part = derived(ARGV[1]), cmsgpack.unpack(ARGV[2])
local numbers = {}
if not find_streams(part[2], numbers) then return redis.error_reply('LIMPET an event is not in the log') end
put_claims(d, part[1])
put_uses(d, part[2], numbers)
put_rows(d, part[3])
put_snapshots(d, part[4])
call('ZADD', base .. 'builds', call('TIME')[1], ARGV[1])
return 1
