return step(function()
  if not holder then
    return { 'not_found' }
  end
  return { 'done', unpack(lease(end_lease())) }
end)
