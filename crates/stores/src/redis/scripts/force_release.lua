-- Ends the lease of any owner; only that of ARGV[5], where a fence is named.
local fence = ARGV[5]

return step(function()
  if not holder then
    return { 'not_found' }
  end
  if fence ~= '' and holder.fence ~= tonumber(fence) then
    return { 'owned_by_another' }
  end
  return { 'done', unpack(lease(end_lease(true))) }
end)
