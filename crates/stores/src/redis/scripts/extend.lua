local owner, fence, ttl = ARGV[5], ARGV[6], tonumber(ARGV[7])

return step(function()
  local why = not_held(owner, fence)
  if why then
    return { why }
  end
  local before = due(holder)
  holder.expires = now + ttl
  -- Whoever extends it knows of it.
  holder.confirm = nil
  report('extended', holder, before)
  changed = true
  return { 'done', unpack(lease(holder)) }
end)
