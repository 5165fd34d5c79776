//! The keys file: the API keys and certificates of callers, with their rights. It holds hashes of keys, never a key, and no
//! error quotes what could be one.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forrst_lock::{Caller as CallerName, LockName};
use serde::{Deserialize, Serialize};

use super::Caller;
use super::key::{ApiKey, KeyHash};
use super::pattern::Pattern;
use super::rights::{Rights, Role};
use super::spare::is_out_of_descriptors;

/// Why a keys file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccessFileError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Something in it is wrong.
    #[error("{}: {problem}", .path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

impl AccessFileError {
    pub(super) fn is_out_of_descriptors(&self) -> bool {
        match self {
            Self::Unreadable { source, .. } => is_out_of_descriptors(source),
            Self::Wrong { .. } => false,
        }
    }
}

/// An entry of the keys file, as `forrst key new` writes it.
#[derive(Debug, Clone, Serialize)]
pub struct KeyEntry {
    /// The name of the caller in answers and logs.
    pub name: String,
    /// The hash of the key.
    pub hash: String,
    /// The roles of the caller.
    pub roles: Vec<String>,
    /// Patterns of the functions that it is confined to; empty for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<String>,
    /// Patterns of the locks that it is confined to; empty for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub locks: Vec<String>,
}

impl KeyEntry {
    /// The entry as TOML, to be appended to the file.
    ///
    /// # Errors
    ///
    /// What is wrong with the entry.
    pub fn to_toml(&self) -> Result<String, String> {
        #[derive(Serialize)]
        struct Block<'a> {
            keys: [&'a KeyEntry; 1],
        }
        let text = toml::to_string(&Block { keys: [self] }).map_err(|error| error.to_string())?;
        KnownCallers::parse(&text)?;
        Ok(text)
    }
}

/// The callers that a keys file names.
pub(super) struct KnownCallers {
    keys: Vec<(KeyHash, Caller)>,
    certificates: Vec<Caller>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    keys: Vec<KeyTable>,
    #[serde(default)]
    certificates: Vec<CertificateTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyTable {
    name: String,
    hash: String,
    roles: Vec<Role>,
    functions: Option<Vec<String>>,
    locks: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CertificateTable {
    name: String,
    roles: Vec<Role>,
    functions: Option<Vec<String>>,
    locks: Option<Vec<String>>,
}

impl KnownCallers {
    pub(super) fn read(path: &Path) -> Result<Self, AccessFileError> {
        let text = std::fs::read_to_string(path).map_err(|source| AccessFileError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|problem| AccessFileError::Wrong {
            path: path.to_owned(),
            problem,
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        // The whole error of toml quotes the line, and its message quotes names of members: each may be a key that was pasted by
        // mistake. The error has no other description, so the message is searched for the prefix of keys.
        let document: Document = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map_or(1, |before| before.matches('\n').count() + 1);
            let message = error.message();
            if message.contains(ApiKey::PREFIX) {
                return format!(
                    "line {line}: this is an API key; the file must have its hash only"
                );
            }
            format!("line {line}: {message}")
        })?;
        let mut known = Self {
            keys: Vec::new(),
            certificates: Vec::new(),
        };
        let mut names = HashSet::new();
        for key in document.keys {
            let hash = key.hash.parse::<KeyHash>();
            let hash = hash.map_err(|why| format!("the hash of key `{}` {why}", key.name))?;
            if known.keys.iter().any(|(other, _)| *other == hash) {
                return Err(format!(
                    "key `{}` has the same hash as another one",
                    key.name
                ));
            }
            let caller = caller("key", &key.name, key.roles, key.functions, key.locks)?;
            if !names.insert(key.name.clone()) {
                return Err(format!("two keys have the name `{}`", key.name));
            }
            known.keys.push((hash, caller));
        }
        names.clear();
        for entry in document.certificates {
            let (functions, locks) = (entry.functions, entry.locks);
            let caller = caller("certificate", &entry.name, entry.roles, functions, locks)?;
            if !names.insert(entry.name.clone()) {
                return Err(format!("certificate `{}` appears twice", entry.name));
            }
            known.certificates.push(caller);
        }
        if known.keys.is_empty() && known.certificates.is_empty() {
            return Err("it has no key and no certificate: nobody could call".to_owned());
        }
        Ok(known)
    }

    /// Compares every key, so that the time it takes does not depend on which one matches.
    pub(super) fn by_key(&self, hash: &KeyHash) -> Option<Caller> {
        let mut found = None;
        for (known, caller) in &self.keys {
            if known == hash {
                found = Some(caller);
            }
        }
        found.cloned()
    }

    pub(super) fn by_certificate(&self, name: &CallerName) -> Option<Caller> {
        let mut certificates = self.certificates.iter();
        certificates
            .find(|caller| caller.name() == Some(name))
            .cloned()
    }
}

fn caller(
    kind: &str,
    name: &str,
    roles: Vec<Role>,
    functions: Option<Vec<String>>,
    locks: Option<Vec<String>>,
) -> Result<Caller, String> {
    let parsed = CallerName::parse(name);
    let parsed =
        parsed.map_err(|why| format!("the name of {kind} `{}` {why}", name.escape_debug()))?;
    if roles.is_empty() {
        return Err(format!("{kind} `{name}` has no roles"));
    }
    let functions = functions.map(|all| all.into_iter().map(Pattern::new).collect());
    let lock = |text: String| match LockName::parse(&text) {
        // Names of locks are normalised, so a pattern in another Unicode form would match none.
        Ok(normalised) => Ok(Pattern::new(normalised.as_str())),
        Err(why) => Err(format!("the pattern `{text}` of {kind} `{name}` {why}")),
    };
    let locks = locks.map(|all| all.into_iter().map(lock).collect::<Result<_, _>>());
    let rights = Rights {
        roles,
        functions,
        locks: locks.transpose()?,
    };
    Ok(Caller::new(parsed, Arc::new(rights)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(name: &str, hash: &str, more: &str) -> String {
        format!("[[keys]]\nname = '{name}'\nhash = '{hash}'\n{more}\n")
    }

    #[test]
    fn an_entry_of_key_new_can_be_read() {
        let key = ApiKey::random().unwrap();
        let entry = KeyEntry {
            name: "billing".to_owned(),
            hash: key.hash().to_string(),
            roles: vec!["call".to_owned()],
            functions: vec!["billing.*".to_owned()],
            locks: vec!["lock:billing:*".to_owned()],
        };
        let known = KnownCallers::parse(&entry.to_toml().unwrap()).unwrap();
        let caller = known.by_key(&key.hash()).unwrap();
        assert_eq!(caller.name().unwrap().as_str(), "billing");
        assert!(known.by_key(&ApiKey::random().unwrap().hash()).is_none());
    }

    #[test]
    fn a_key_that_was_pasted_into_the_file_is_not_quoted() {
        let key = ApiKey::random().unwrap();
        let key = key.reveal();
        for text in [
            format!("{key} = 1"),
            format!("[[keys]]\n{key} = 'x'"),
            block("a", key, "roles = ['call']"),
            block("a", "x", &format!("roles = ['{key}']")),
        ] {
            let problem = KnownCallers::parse(&text).err().expect(&text);
            assert!(!problem.contains(key), "{problem}");
        }
    }

    #[test]
    fn an_error_says_what_is_wrong() {
        let hash = ApiKey::random().unwrap().hash().to_string();
        let other = ApiKey::random().unwrap().hash().to_string();
        let call = "roles = ['call']";
        for (text, says) in [
            (String::new(), "nobody"),
            ("keys = 5".to_owned(), "line 1"),
            ("[[kesy]]".to_owned(), "kesy"),
            (block("a", &hash, ""), "roles"),
            (block("a", &hash, "roles = []"), "no roles"),
            (block("a", &hash, "roles = ['root']"), "root"),
            (block("a", "secret", call), "sha256"),
            (block("", &hash, call), "name"),
            (block("a", &hash, &format!("{call}\nlock = ['x']")), "lock"),
            (
                block("a", &hash, &format!("{call}\nlocks = ['billing:*']")),
                "lock:",
            ),
            (
                block("a", &hash, call) + &block("b", &hash, call),
                "another",
            ),
            (
                block("a", &hash, call) + &block("a", &other, call),
                "two keys",
            ),
            (
                "[[certificates]]\nname = 'a'\nroles = ['call']\n".repeat(2),
                "twice",
            ),
        ] {
            let problem = KnownCallers::parse(&text).err().expect(&text);
            assert!(problem.contains(says), "{problem}\n{text}");
        }
    }

    #[test]
    fn a_key_pasted_by_mistake_is_not_repeated_in_the_error() {
        let problem = KnownCallers::parse("[[keys]]\nforrst_0123 abc\n")
            .err()
            .unwrap();
        assert!(!problem.contains("forrst_0123"), "{problem}");
        assert!(problem.contains("line 2"), "{problem}");
    }
}
