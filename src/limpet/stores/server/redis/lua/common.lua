-- What every script begins with. KEYS[1] is the head of a tenant; all its keys have the same hash tag.
local base = string.sub(KEYS[1], 1, -5)
local call = redis.call

local function text(number)
  return string.format('%.0f', number)
end

-- What is derived lies under a number of its own, so that a rebuild can be put into its place at once.
local function derived(generation)
  return base .. 'd' .. (generation or '0') .. ':'
end

local function present()
  return derived(call('HGET', KEYS[1], 'g'))
end

-- A command with many arguments, in steps that Lua's stack can take.
local function many(command, key, arguments)
  for first = 1, #arguments, 1000 do
    call(command, key, unpack(arguments, first, math.min(first + 999, #arguments)))
  end
end

local function eight(number)
  return struct.pack('>I8', number)
end

-- The number of elements at the beginning of a list of rising numbers that are not above one.
local function up_to(key, number)
  local low, high = 0, call('LLEN', key)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if tonumber(call('LINDEX', key, middle)) <= number then low = middle + 1 else high = middle end
  end
  return low
end

-- A stream by its name, or by its number as text: number, name, first version, own events; nothing if there is none.
local function stream_of(name, number)
  if name then number = call('HGET', base .. 'names', name) else name = call('HGET', base .. 'streams', number) end
  if not number or not name then return nil end
  return number, name, tonumber(call('HGET', base .. 'firsts', number) or 1), call('LLEN', base .. 'own:' .. number)
end

-- Its mark holds only while name and number lead to one another.
local function told(number, name, first, count)
  local whole = call('HGET', base .. 'names', name) == number and call('HGET', base .. 'streams', number) == name
  local mark = whole and call('HGET', base .. 'marks', number)
  return {number, name, first, first + count - 1, call('LRANGE', base .. 'bases:' .. number, 0, -1), mark or ''}
end

-- Entries of the log with what is kept beside them: payload and salt, what became of them, the stream's name.
local function whole(entries)
  local names, blanks = {}, call('EXISTS', base .. 'erased') == 1
  local rows = {}
  for at, entry in ipairs(entries) do
    local position, fields = string.match(entry[1], '^%d+'), entry[2]
    local number = fields[2]
    if names[number] == nil then names[number] = call('HGET', base .. 'streams', number) end
    rows[at] = {
      entry[1], fields, call('HGET', base .. 'body', position),
      blanks and call('HGET', base .. 'erased', position), names[number],
    }
  end
  return rows
end
