//! A server that requires API keys, without a listener.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use forrst_server::{Access, ApiKey, KeyEntry, Limits, Server};
use forrst_stores::MemoryStore;
use http_body_util::BodyExt;
use tempfile::TempDir;
use tower::ServiceExt;

use crate::functions::{Seen, register};

pub(crate) struct Guarded {
    pub(crate) server: Server,
    pub(crate) seen: Seen,
    pub(crate) keys: Vec<String>,
    entries: Vec<String>,
    access: Access,
    folder: TempDir,
}

impl Guarded {
    /// A server with this many keys.
    pub(crate) fn new(limits: Limits, count: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = (0..count).map(|number| {
            let key = ApiKey::random().unwrap();
            let entry = KeyEntry {
                name: format!("caller {number}"),
                hash: key.hash().to_string(),
                roles: vec!["call".to_owned()],
                functions: Vec::new(),
                locks: Vec::new(),
            };
            (key.reveal().to_owned(), entry.to_toml().unwrap())
        });
        let (keys, entries): (Vec<String>, Vec<String>) = made.unzip();
        let path = folder.path().join("keys.toml");
        std::fs::write(&path, entries.concat()).unwrap();
        let access = Access::from_file(path).unwrap();
        let seen = Seen::default();
        let builder = Server::builder()
            .store(Arc::new(MemoryStore::new()))
            .access(access.clone())
            .limits(limits);
        Self {
            server: register(builder, &seen).build().unwrap(),
            seen,
            keys,
            entries,
            access,
            folder,
        }
    }

    /// Revokes all keys but one.
    pub(crate) fn keep_only(&self, number: usize) {
        let path = self.folder.path().join("keys.toml");
        std::fs::write(path, &self.entries[number]).unwrap();
        self.access.reload().unwrap();
    }

    pub(crate) async fn send(
        &self,
        path: &str,
        key: Option<&str>,
        body: String,
    ) -> (StatusCode, Vec<u8>) {
        let mut request = Request::post(path).header("content-type", "application/json");
        if let Some(key) = key {
            request = request.header("x-api-key", key);
        }
        let request = request.body(Body::from(body)).unwrap();
        let answer = self.server.router().oneshot(request).await.unwrap();
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, body.to_vec())
    }
}
