//! Authentication and authorisation.
//!
//! A transport reads a [`Credential`] from a connection or a request. [`Access`] makes a [`Caller`] of it, for each request
//! anew, so that a revoked key does not keep working on an open connection. Rights are checked in two places: in `Core::check`,
//! for the function, and where the name of a lock is first known.

mod caller;
mod credential;
mod file;
mod key;
mod pattern;
mod rights;
mod spare;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use forrst_protocol::{ErrorCode, ErrorObject};
use tokio::sync::watch;

pub(crate) use self::caller::Caller;
pub(crate) use self::credential::{Credential, PeerName};
use self::file::KnownCallers;
pub use self::file::{AccessFileError, KeyEntry};
pub use self::key::{ApiKey, KeyHash};
pub(crate) use self::rights::Needs;
pub use self::rights::Role;
pub(crate) use self::spare::{SpareDescriptors, is_out_of_descriptors};

/// Who may call: every client, or the callers that a keys file names. Cheap to clone: all clones are one.
///
/// The file is TOML:
///
/// ```toml
/// [[keys]]
/// name = "billing"
/// hash = "sha256:…"                # as `forrst key new` prints it
/// roles = ["call", "observe"]
/// functions = ["billing.*"]        # all when omitted
/// locks = ["lock:billing*"]        # all when omitted
///
/// [[certificates]]
/// name = "ops.example.org"         # of the client's certificate
/// roles = ["admin"]
/// ```
#[derive(Clone, Default)]
pub struct Access {
    file: Option<Arc<KeysFile>>,
}

struct KeysFile {
    path: PathBuf,
    known: RwLock<Arc<KnownCallers>>,
    /// Counts the reloads. Calls and sessions that outlive one check again whether their credential is still valid.
    reloads: watch::Sender<u64>,
    spare: SpareDescriptors,
}

impl Access {
    /// Every client may do everything.
    pub fn open() -> Self {
        Self::default()
    }

    /// Only the callers that the file names.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or something in it is wrong.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, AccessFileError> {
        let path = path.as_ref().to_owned();
        let known = RwLock::new(Arc::new(KnownCallers::read(&path)?));
        Ok(Self {
            file: Some(Arc::new(KeysFile {
                path,
                known,
                reloads: watch::Sender::new(0),
                spare: SpareDescriptors::new(),
            })),
        })
    }

    /// Reads the file again; if that fails, the previous content stays in force. Callers that it no longer names lose their
    /// waiting calls, their sessions and their renewals.
    ///
    /// # Errors
    ///
    /// As [`from_file`](Self::from_file).
    pub fn reload(&self) -> Result<(), AccessFileError> {
        if let Some(file) = &self.file {
            let read = || KnownCallers::read(&file.path);
            let known = file
                .spare
                .with(read, AccessFileError::is_out_of_descriptors)?;
            *file.known.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(known);
            file.reloads.send_modify(|count| *count += 1);
        }
        Ok(())
    }

    /// Whether callers have to authenticate.
    pub fn is_restricted(&self) -> bool {
        self.file.is_some()
    }

    /// Returns the refusal when a credential stops being valid. Costs nothing until a file is read again.
    pub(crate) async fn revoked(&self, credential: &Credential) -> ErrorObject {
        let reloads = self.file.as_ref().map(|file| file.reloads.subscribe());
        let reloaded = async {
            let Some(mut reloads) = reloads else {
                return std::future::pending().await;
            };
            loop {
                // Checked before the first change, too: a reload may have come just before the subscription.
                if let Err(why) = self.caller(credential) {
                    return why;
                }
                if reloads.changed().await.is_err() {
                    return std::future::pending().await;
                }
            }
        };
        let distrusted = async {
            match credential {
                Credential::Certificate(peer) => peer.distrusted.cancelled().await,
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            why = reloaded => why,
            () = distrusted => untrusted(),
        }
    }

    /// The caller that a credential belongs to.
    ///
    /// # Errors
    ///
    /// The refusal, if it is missing, invalid or revoked.
    pub(crate) fn caller(&self, credential: &Credential) -> Result<Caller, ErrorObject> {
        if let Credential::Certificate(peer) = credential
            && peer.distrusted.is_cancelled()
        {
            return Err(untrusted());
        }
        let Some(file) = &self.file else {
            let name = match credential {
                Credential::Certificate(peer) => Some(peer.name.clone()),
                _ => None,
            };
            return Ok(Caller::with_all_rights(name));
        };
        let known = file.known.read().unwrap_or_else(PoisonError::into_inner);
        let known = known.clone();
        match credential {
            Credential::Local => Ok(Caller::with_all_rights(None)),
            Credential::Nothing => Err(unauthorized(
                "Send an API key, as `Authorization: Bearer …` or `X-API-Key: …`",
            )),
            Credential::Unreadable(why) => Err(unauthorized(why)),
            Credential::Key(hash) => {
                let caller = known.by_key(hash);
                caller.ok_or_else(|| unauthorized("The API key is not known here"))
            }
            Credential::Certificate(peer) => {
                let caller = known.by_certificate(&peer.name);
                caller.ok_or_else(|| unauthorized("The certificate's name is not known here"))
            }
        }
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            None => f.write_str("open to every client"),
            Some(file) => write!(f, "restricted by {}", file.path.display()),
        }
    }
}

fn untrusted() -> ErrorObject {
    unauthorized("The authority of the certificate is no longer trusted")
}

fn unauthorized(message: &str) -> ErrorObject {
    ErrorObject::new(ErrorCode::Unauthorized, message)
}
