local owner, fence, ttl = ARGV[5], ARGV[6], tonumber(ARGV[7])

return step(function()
  local why = not_held(owner, fence)
  if why then
    return { why }
  end
  holder.expires = now + ttl
  holder.confirm = nil
  changed = true
  return { 'done', unpack(lease(holder)) }
end)
