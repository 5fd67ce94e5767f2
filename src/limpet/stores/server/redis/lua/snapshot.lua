-- The newest snapshot of a stream.
local number = call('HGET', base .. 'names', ARGV[1])
return number and call('HGET', present() .. 'snapshots', number)
