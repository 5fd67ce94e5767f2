-- Events after a position, in order.
return whole(call('XRANGE', base .. 'log', '(' .. ARGV[1] .. '-0', '+', 'COUNT', ARGV[2]))
