//! How the command line names a lock: by a key, or by a full key.

use clap::Args;

use crate::error::CommandError;
use crate::output::quoted;

#[derive(Args)]
pub(super) struct LockName {
    /// The lock: a key, or a full key, which begins with lock:
    key: String,

    /// The function whose callers share the lock [default: none, for a global lock]
    #[arg(long, value_name = "FUNCTION")]
    function: Option<String>,
}

impl LockName {
    /// The full key, as the server forms it.
    pub(super) fn full_key(&self) -> String {
        match &self.function {
            Some(function) => format!("lock:{function}:{}", self.key),
            None if self.key.starts_with("lock:") => self.key.clone(),
            None => format!("lock:{}", self.key),
        }
    }
}

/// Refuses a full key where a lock is acquired: it would lock `lock:lock:…`, another lock.
pub(crate) fn refuse_full_key(key: &str, function: Option<&str>) -> Result<(), CommandError> {
    let Some(rest) = key.strip_prefix("lock:") else {
        return Ok(());
    };
    let in_function = function.and_then(|function| rest.strip_prefix(function)?.strip_prefix(':'));
    let own = in_function.unwrap_or(rest);
    let refused = CommandError::usage(format!(
        "`{key}` is a full key; a lock is acquired by its key alone"
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
    fn a_full_key_is_refused_where_a_lock_is_acquired() {
        assert!(refuse_full_key("export:orders", None).is_ok());
        assert!(refuse_full_key("locks", Some("a.b")).is_ok());
        for (key, function, own) in [
            ("lock:export:orders", None, "write export:orders"),
            ("lock:a.b:x", None, "write a.b:x"),
            ("lock:a.b:x", Some("a.b"), "write x"),
            ("lock:a.bc:x", Some("a.b"), "write a.bc:x"),
        ] {
            let refused = refuse_full_key(key, function).unwrap_err();
            assert_eq!(refused.exit_code(), 2, "{key}");
            assert!(refused.to_text().contains(own), "{}", refused.to_text());
        }
    }

    #[test]
    fn a_full_key_is_used_as_it_is() {
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
