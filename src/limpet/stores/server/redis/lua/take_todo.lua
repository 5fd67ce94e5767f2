-- What an erasure left to do in a tenant, by its position; nothing, or whether it can't be there any more.
local todo = call('HGET', base .. 'todo', ARGV[1])
if todo then return {'todo', todo} end
return {tonumber(call('HGET', KEYS[1], 'p') or 0) >= tonumber(ARGV[1]) and 'gone' or 'wait'}
