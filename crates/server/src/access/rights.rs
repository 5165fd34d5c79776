//! Roles, and the functions and locks that a caller is confined to.

use std::sync::LazyLock;

use forrst_lock::LockName;
use serde::Deserialize;

use super::pattern::Pattern;

/// What a caller may do, in the keys file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Calls functions, and takes, extends and releases locks.
    Call,
    /// Inspects locks and metrics.
    Observe,
    /// Acts on the locks of other callers.
    Admin,
}

impl Role {
    /// All of them, by their names.
    pub const ALL: [(&'static str, Self); 3] = [
        ("call", Self::Call),
        ("observe", Self::Observe),
        ("admin", Self::Admin),
    ];

    /// The name in the keys file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Observe => "observe",
            Self::Admin => "admin",
        }
    }
}

/// Who may call a system function. There is no default: each function declares it, and an empty list admits no caller.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Needs {
    /// Every authenticated caller, whatever its roles.
    AnyCaller,
    /// Callers with one of these roles.
    OneOf(&'static [Role]),
}

/// Roles, and what they are confined to.
#[derive(Debug)]
pub(crate) struct Rights {
    pub(super) roles: Vec<Role>,
    /// All functions when `None`.
    pub(super) functions: Option<Vec<Pattern>>,
    /// All locks when `None`.
    pub(super) locks: Option<Vec<Pattern>>,
}

impl Rights {
    pub(super) fn all() -> &'static Self {
        static ALL: LazyLock<Rights> = LazyLock::new(|| Rights {
            roles: Role::ALL.map(|(_, role)| role).to_vec(),
            functions: None,
            locks: None,
        });
        &ALL
    }

    pub(super) fn has(&self, role: Role) -> bool {
        self.roles.contains(&role)
    }

    pub(super) fn covers_function(&self, name: &str) -> bool {
        covers(self.functions.as_deref(), name)
    }

    pub(super) fn covers_lock(&self, name: &LockName) -> bool {
        covers(self.locks.as_deref(), name.as_str())
    }

    pub(super) fn is_confined(&self) -> bool {
        self.locks.is_some()
    }

    pub(super) fn common_prefix_of_locks(&self) -> &str {
        let patterns = self.locks.as_deref().unwrap_or_default();
        let prefixes = patterns.iter().map(Pattern::literal_prefix);
        prefixes.reduce(common_prefix).unwrap_or_default()
    }
}

fn covers(patterns: Option<&[Pattern]>, name: &str) -> bool {
    patterns.is_none_or(|patterns| patterns.iter().any(|pattern| pattern.matches(name)))
}

fn common_prefix<'a>(one: &'a str, other: &str) -> &'a str {
    let same = one.char_indices().zip(other.chars());
    let end = same
        .take_while(|((_, one), other)| one == other)
        .last()
        .map_or(0, |((at, one), _)| at + one.len_utf8());
    &one[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_common_prefix_ends_before_the_first_difference() {
        for (one, other, expected) in [
            ("lock:a", "lock:b", "lock:"),
            ("lock:a", "lock:a:b", "lock:a"),
            ("lock:é1", "lock:é2", "lock:é"),
            ("lock:é", "lock:è", "lock:"),
            ("", "lock:", ""),
        ] {
            assert_eq!(common_prefix(one, other), expected);
        }
    }
}
