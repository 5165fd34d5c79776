//! Locks by other systems, each measured through its public client library.

#[cfg_attr(not(etcd), path = "peers/no_etcd.rs")]
pub(crate) mod etcd;
pub(crate) mod fred_scripts;
pub(crate) mod postgres;
pub(crate) mod redis_rs;
pub(crate) mod rslock;

use std::time::Duration;

/// The ttl of a lock in Redis.
pub(crate) const TTL: Duration = Duration::from_secs(30);

/// SET NX PX, and a fence in the same step: the least that a safe lock in Redis needs.
pub(crate) const ACQUIRE: &str = "\
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
    return redis.call('INCR', KEYS[2])
end
return 0";

/// Compare and delete: only the owner releases.
pub(crate) const RELEASE: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then
    return redis.call('DEL', KEYS[1])
end
return 0";

/// Compare and delete, then signal one waiter.
pub(crate) const RELEASE_AND_SIGNAL: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then
    redis.call('DEL', KEYS[1])
    if redis.call('LLEN', KEYS[2]) == 0 then
        redis.call('LPUSH', KEYS[2], '1')
    end
    return 1
end
return 0";

/// The message of an error, for results with `String` errors.
pub(crate) fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}
