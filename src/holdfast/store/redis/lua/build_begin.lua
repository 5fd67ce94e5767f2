-- Begin to derive anew beside what is there; return the number that it lies under.
local number = call('HINCRBY', KEYS[1], 'c', 1)
call('ZADD', base .. 'builds', call('TIME')[1], number)
return number
