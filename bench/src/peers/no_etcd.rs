//! Replaces the module `etcd` in builds without its client; every row then gives the reason.

use std::time::Duration;

use crate::load::Measured;

/// Cannot be created.
pub(crate) enum Etcd {}

impl Etcd {
    pub(crate) fn start() -> impl Future<Output = Result<Self, String>> {
        let reason = "not built: CONTRIBUTING.md has the command; it needs protoc";
        std::future::ready(Err(reason.to_owned()))
    }

    pub(crate) fn cycles(
        &self,
        _: usize,
        _: Duration,
    ) -> std::future::Pending<Result<Measured, String>> {
        match *self {}
    }

    pub(crate) fn hand_overs(
        &self,
        _: usize,
        _: Duration,
    ) -> std::future::Pending<Result<Measured, String>> {
        match *self {}
    }
}
