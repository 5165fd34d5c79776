//! How callers authenticate: the API keys and certificates of the settings, which can be read again while the server runs.
//!
//! An address that other machines can reach is refused unless callers authenticate there.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use forrst_server::{Access, Tls};
use tokio::net::TcpListener;

use crate::options::Settings;

/// The keys and certificates that callers are checked against.
pub(super) struct Authentication {
    pub(super) access: Access,
    pub(super) tls: Option<Tls>,
}

impl Authentication {
    pub(super) fn load(settings: &Settings) -> Result<Self, String> {
        let access = match &settings.auth_file {
            None => Access::open(),
            Some(path) => Access::from_file(path).map_err(|error| error.to_string())?,
        };
        let tls = settings.tls.clone().map(Tls::load).transpose();
        let tls_key = settings.tls.as_ref().map(|files| &files.key);
        for file in settings.auth_file.iter().chain(tls_key) {
            warn_if_shared(file);
        }
        Ok(Self {
            access,
            tls: tls.map_err(|error| error.to_string())?,
        })
    }

    /// Refuses an address that other machines can reach if callers do not have to authenticate.
    pub(super) fn check_address(
        &self,
        listener: &TcpListener,
        is_insecure: bool,
    ) -> Result<(), String> {
        let Ok(address) = listener.local_addr() else {
            return Ok(());
        };
        let is_loopback = address.ip().to_canonical().is_loopback();
        if self.access.is_restricted() && self.tls.is_none() && !is_loopback {
            tracing::warn!(%address, "API keys are sent to this address in cleartext: use --tls-cert and --tls-key, or a proxy that encrypts");
        }
        let is_required =
            self.access.is_restricted() || self.tls.as_ref().is_some_and(Tls::asks_clients);
        if is_loopback || is_required {
            return Ok(());
        }
        if is_insecure {
            tracing::warn!(%address, "clients that can reach this address may do everything without a key");
            return Ok(());
        }
        Err(format!(
            "{address} can be reached from other machines, and callers do not have to authenticate: \
             use --auth-file or --tls-client-ca, listen on 127.0.0.1, or allow it with --insecure"
        ))
    }

    pub(super) fn can_reload(&self) -> bool {
        self.access.is_restricted() || self.tls.is_some()
    }

    /// Reads the files again. If one cannot be read or is invalid, what was read before stays in force.
    pub(super) fn reload(&self) {
        match self.access.reload() {
            Ok(()) if self.access.is_restricted() => tracing::info!("the keys were read again"),
            Ok(()) => {}
            Err(error) => {
                tracing::error!(%error, "cannot read the keys again: they stay as they were");
            }
        }
        match self.tls.as_ref().map(Tls::reload) {
            Some(Ok(())) => tracing::info!("the certificates were read again"),
            None => {}
            Some(Err(error)) => {
                tracing::error!(%error, "cannot read the certificates again: they stay as they were");
            }
        }
    }
}

/// Other users could take a key that they can read, and add one of their own to a file that they can write to.
fn warn_if_shared(file: &Path) {
    let Ok(metadata) = std::fs::metadata(file) else {
        return;
    };
    let mode = metadata.permissions().mode() & 0o777;
    let what = match (mode & 0o044 != 0, mode & 0o022 != 0) {
        (_, true) => "write to",
        (true, false) => "read",
        (false, false) => return,
    };
    let (path, mode) = (file.display(), format!("{mode:04o}"));
    tracing::warn!(%path, %mode, "other users can {what} this file, which must stay secret: chmod 600 it");
}
