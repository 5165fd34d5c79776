//! A server behind a proxy that delays, loses and refuses what passes through it.

use std::ops::Deref;
use std::time::Duration;

use forrst_client::{Client, ClientBuilder, Error, Retry};
use forrst_testkit::{Traffic, Way};

use crate::host::{Host, soon};

pub(crate) struct Proxy(forrst_testkit::Proxy);

impl Deref for Proxy {
    type Target = forrst_testkit::Proxy;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Proxy {
    pub(crate) fn http(&self) -> ClientBuilder {
        Client::builder(format!("http://{}", self.address()))
    }

    pub(crate) fn websocket(&self) -> ClientBuilder {
        Client::builder(format!("ws://{}", self.address()))
    }

    /// Delays each answer by this time.
    pub(crate) fn delay_answers(&self, time: Duration) {
        self.delay(Way::ToClient, time);
    }

    /// Drops everything in both directions, without closing a connection.
    pub(crate) fn swallow_all(&self) {
        for way in [Way::ToServer, Way::ToClient] {
            self.swallow(way, Traffic::All);
        }
    }

    /// Closes all connections, and every new one at once.
    pub(crate) fn refuse_all(&self) {
        self.refuse(Traffic::All);
    }
}

pub(crate) async fn host_behind_proxy() -> (Host, Proxy) {
    let host = Host::start().await;
    let proxy = Proxy(forrst_testkit::Proxy::start(host.address.port()));
    (host, proxy)
}

/// With a client that has reached the host through the proxy, by `http` or `ws`.
pub(crate) async fn connected_by(scheme: &str) -> (Host, Proxy, Client) {
    let (host, proxy) = host_behind_proxy().await;
    let url = format!("{scheme}://{}", proxy.address());
    let client = soon(Client::connect(&url)).await.unwrap();
    (host, proxy, client)
}

#[tokio::test]
async fn the_proxy_passes_loses_and_refuses_as_asked() {
    let (_host, proxy) = host_behind_proxy().await;
    let client = proxy.http().retry(Retry::never()).build().unwrap();
    soon(client.ping()).await.unwrap();
    proxy.lose_answers(1);
    soon(client.ping()).await.unwrap_err();
    assert_eq!(proxy.lost_answers(), 1);
    soon(client.ping()).await.unwrap();
    proxy.refuse_all();
    soon(client.ping()).await.unwrap_err();
    proxy.pass();
    soon(client.ping()).await.unwrap();
}

#[tokio::test]
async fn the_proxy_accepts_no_connections_while_it_does_not_listen() {
    let (_host, proxy) = host_behind_proxy().await;
    let client = proxy.http().retry(Retry::never()).build().unwrap();
    proxy.stop_listening();
    let error = soon(client.ping()).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
    proxy.listen();
    soon(client.ping()).await.unwrap();
}
