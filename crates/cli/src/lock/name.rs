//! Which lock.

use clap::Args;

use crate::error::CommandError;
use crate::output::quoted;

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

/// Refuses a full key where a lock is taken: it would not be that lock, but another one whose key begins with `lock:`.
pub(crate) fn check_own_key(key: &str, function: Option<&str>) -> Result<(), CommandError> {
    let Some(rest) = key.strip_prefix("lock:") else {
        return Ok(());
    };
    let in_function = function.and_then(|function| rest.strip_prefix(function)?.strip_prefix(':'));
    let own = in_function.unwrap_or(rest);
    let refused = CommandError::usage(format!(
        "`{key}` is a full key, and a lock is taken by its own"
    ));
    Err(match own {
        "" => refused,
        own => refused.hint(format!("write {}", quoted(own))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_has_no_prefix() {
        assert!(check_own_key("export:orders", None).is_ok());
        assert!(check_own_key("locks", Some("a.b")).is_ok());
        for (key, function, own) in [
            ("lock:export:orders", None, "write export:orders"),
            ("lock:a.b:x", None, "write a.b:x"),
            ("lock:a.b:x", Some("a.b"), "write x"),
            ("lock:a.bc:x", Some("a.b"), "write a.bc:x"),
        ] {
            let refused = check_own_key(key, function).unwrap_err();
            assert_eq!(refused.exit_code(), 2, "{key}");
            assert!(refused.told().contains(own), "{}", refused.told());
        }
    }

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
