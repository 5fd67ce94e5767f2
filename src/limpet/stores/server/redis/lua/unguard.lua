-- Give a guard back, if it is one's own.
return call('GET', base .. 'guard') == ARGV[1] and call('DEL', base .. 'guard') or 0
