//! Who is let in: keys and certificates, and the addresses that need them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use forrst_server::{Access, Tls};
use tokio::net::TcpListener;

use crate::options::Settings;

/// What callers have to show.
pub(super) struct Doors {
    pub(super) access: Access,
    pub(super) tls: Option<Tls>,
}

impl Doors {
    pub(super) fn open(settings: &Settings) -> Result<Self, String> {
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

    /// An address that others can reach needs somebody at the door.
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
            tracing::warn!(%address, "API keys are sent in cleartext to this address, and can be read on the way: use --tls-cert and --tls-key, or a proxy that encrypts");
        }
        let asks = self.access.is_restricted() || self.tls.as_ref().is_some_and(Tls::asks_clients);
        if is_loopback || asks {
            return Ok(());
        }
        if is_insecure {
            tracing::warn!(%address, "everybody who can reach this address may do everything");
            return Ok(());
        }
        Err(format!(
            "{address} can be reached from other machines, and nobody is asked who they are: \
             use --auth-file or --tls-client-ca, listen on 127.0.0.1, or say --insecure"
        ))
    }

    pub(super) fn can_reload(&self) -> bool {
        self.access.is_restricted() || self.tls.is_some()
    }

    /// Reads the files again. What cannot be read, or is wrong, changes nothing.
    pub(super) fn reload(&self) {
        match self.access.reload() {
            Ok(()) if self.access.is_restricted() => tracing::info!("the keys were read again"),
            Ok(()) => {}
            Err(error) => tracing::error!(%error, "the keys stay as they were"),
        }
        match self.tls.as_ref().map(Tls::reload) {
            Some(Ok(())) => tracing::info!("the certificates were read again"),
            None => {}
            Some(Err(error)) => tracing::error!(%error, "the certificates stay as they were"),
        }
    }
}

/// Other users who can read a key can use it, and those who can write to the file can add their own.
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
    tracing::warn!(%path, %mode, "other users can {what} this file of keys: chmod 600 it");
}
