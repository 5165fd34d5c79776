//! What all listeners of a server share: settings, budgets, and permits for connections.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use axum::http::HeaderValue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Tls;
use super::host_check::HostCheck;
use super::rpc::Rpc;
use crate::limits::{Budgets, Limits, Refusal, network};
use crate::metrics::{Metrics, OpenConnection};

/// How many further connections a full server accepts, to say that it is full and to answer `/health` and `/ready`.
const RESERVED: usize = 128;

/// Settings and permits of the listeners, whichever protocol they speak.
#[derive(Debug)]
pub(crate) struct Listeners {
    pub(crate) tls: Option<Tls>,
    /// Hosts that requests may be for, besides the loopback names.
    pub(crate) allowed_hosts: Vec<String>,
    /// The check of routes that are mounted into an application.
    pub(super) mounted_hosts: Arc<HostCheck>,
    connections: Arc<Semaphore>,
    reserved: Arc<Semaphore>,
    max_per_address: usize,
    pub(super) budgets: Budgets,
    addresses: Arc<Addresses>,
    /// The name of the node, as the value of a header.
    pub(super) node: Option<HeaderValue>,
    /// Created on first use.
    pub(super) rpc: OnceLock<Rpc>,
}

/// The number of open connections from each address.
#[derive(Debug, Default)]
struct Addresses(Mutex<HashMap<IpAddr, usize>>);

/// A permit for a connection, shared by all listeners.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    _permit: OwnedSemaphorePermit,
    _open: OpenConnection,
    _address: Option<AddressPermit>,
}

#[derive(Debug)]
struct AddressPermit {
    addresses: Arc<Addresses>,
    address: IpAddr,
}

impl Listeners {
    pub(crate) fn new(
        tls: Option<Tls>,
        allowed_hosts: Vec<String>,
        node: &str,
        limits: &Limits,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            tls,
            mounted_hosts: Arc::new(HostCheck::of_router(&allowed_hosts)),
            allowed_hosts,
            connections: Arc::new(Semaphore::new(limits.max_connections)),
            reserved: Arc::new(Semaphore::new(RESERVED)),
            max_per_address: limits
                .max_connections_per_address
                .unwrap_or(limits.max_connections),
            budgets: Budgets::new(limits, metrics),
            addresses: Arc::default(),
            node: HeaderValue::from_str(node).ok(),
            rpc: OnceLock::new(),
        }
    }

    /// A permit for a connection from this address, or from a unix socket; `None` if none is left.
    pub(super) fn admit(
        &self,
        address: Option<IpAddr>,
        metrics: &Arc<Metrics>,
    ) -> Option<ConnectionPermit> {
        let Ok(permit) = self.connections.clone().try_acquire_owned() else {
            metrics.refused(Refusal::Connections);
            return None;
        };
        let address = match address {
            None => None,
            Some(address) => {
                let Some(permit) = self.addresses.admit(network(address), self.max_per_address)
                else {
                    metrics.refused(Refusal::ConnectionsOfAddress);
                    return None;
                };
                Some(permit)
            }
        };
        Some(ConnectionPermit {
            _permit: permit,
            _open: metrics.connection(),
            _address: address,
        })
    }

    /// A permit for a connection to a full server; `None` if none of those is left, either.
    pub(super) fn admit_to_full(&self) -> Option<OwnedSemaphorePermit> {
        self.reserved.clone().try_acquire_owned().ok()
    }
}

impl Addresses {
    fn admit(self: &Arc<Self>, address: IpAddr, most: usize) -> Option<AddressPermit> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(AddressPermit {
            addresses: self.clone(),
            address,
        })
    }
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let mut counts = self
            .addresses
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_network_counts_as_one_address_and_is_dropped_with_its_last_connection() {
        let addresses = Arc::new(Addresses::default());
        let parse = |text: &str| network(text.parse().unwrap());
        let first = addresses.admit(parse("2001:db8::1"), 1);
        assert!(first.is_some());
        assert!(addresses.admit(parse("2001:db8::2"), 1).is_none());
        assert!(addresses.admit(parse("2001:db8:0:1::1"), 1).is_some());
        drop(first);
        assert!(addresses.0.lock().unwrap().is_empty());
    }
}
