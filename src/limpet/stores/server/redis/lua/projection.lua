-- One row of what is derived.
return call('HGET', present() .. ARGV[1], ARGV[2])
