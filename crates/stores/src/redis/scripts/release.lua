local owner, fence = ARGV[5], ARGV[6]

return step(function()
  local why = not_held(owner, fence)
  if why then
    return { why }
  end
  return { 'done', unpack(lease(end_lease(false))) }
end)
