-- The version of a stream's last own event up to a position; 0 if it had none.
local number, _, first = stream_of(ARGV[1])
if not number then return 0 end
local count = up_to(base .. 'own:' .. number, tonumber(ARGV[2]))
return count > 0 and first + count - 1 or 0
