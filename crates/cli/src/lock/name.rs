//! Which lock.

use clap::Args;

#[derive(Args)]
pub(super) struct LockName {
    /// The lock: a key, or a full key, which begins with lock:
    key: String,

    /// The function whose callers share the lock; without it, it is a global one
    #[arg(long, value_name = "FUNCTION")]
    function: Option<String>,
}

impl LockName {
    /// As the server knows it.
    pub(super) fn full_key(&self) -> String {
        match &self.function {
            Some(function) => format!("lock:{function}:{}", self.key),
            None if self.key.starts_with("lock:") => self.key.clone(),
            None => format!("lock:{}", self.key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_key_is_taken_as_it_is() {
        let full_key = |key: &str, function: Option<&str>| {
            let function = function.map(str::to_owned);
            let key = key.to_owned();
            LockName { key, function }.full_key()
        };
        assert_eq!(full_key("export:orders", None), "lock:export:orders");
        assert_eq!(full_key("lock:export:orders", None), "lock:export:orders");
        assert_eq!(full_key("user:1", Some("a.b")), "lock:a.b:user:1");
        // With a function it can only be a key.
        assert_eq!(full_key("lock:x", Some("a.b")), "lock:a.b:lock:x");
    }
}
