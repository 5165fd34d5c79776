-- A node says that it knows of the lease that one of its waiters was handed.
local fence = tonumber(ARGV[5])

return step(function()
  if not holder or holder.fence ~= fence then
    return { 'not_found' }
  end
  confirmed()
  return { 'done', unpack(lease(holder)) }
end)
