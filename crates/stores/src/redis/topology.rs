//! Which server of a cluster owns which slots, according to `CLUSTER SLOTS`.

use fred::types::Value;
use fred::types::config::Server;

const SLOTS: usize = 16_384;

/// The primaries that have slots; without a cluster, the only server.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Topology {
    /// Sorted, so that the answers of all servers give equal topologies.
    servers: Vec<Server>,
    /// For each slot, the index of its server. Empty without a cluster.
    owners: Vec<Option<u16>>,
}

impl Topology {
    pub(super) fn single() -> Self {
        Self::default()
    }

    /// The topology in the answer of a server, and the replicas that it names. `None` if the answer is invalid or names no server, like
    /// that of a server that was removed from its cluster.
    pub(super) fn parse(answer: Value, queried: &Server) -> Option<(Self, Vec<Server>)> {
        let mut ranges = Vec::new();
        let mut replicas = Vec::new();
        for range in parts(answer)? {
            let mut range = parts(range)?.into_iter();
            let (first, last) = (number(&range.next()?)?, number(&range.next()?)?);
            let primary = server(range.next()?, queried)?;
            replicas.extend(range.filter_map(|replica| server(replica, queried)));
            ranges.push((first..=last, primary));
        }
        let mut servers: Vec<Server> = ranges.iter().map(|(_, server)| server.clone()).collect();
        servers.sort();
        servers.dedup();
        let mut owners = vec![None; SLOTS];
        for (slots, server) in ranges {
            let index = servers.binary_search(&server).ok();
            let index = index.and_then(|index| u16::try_from(index).ok());
            owners.get_mut(slots)?.fill(index);
        }
        (!servers.is_empty()).then_some((Self { servers, owners }, replicas))
    }

    pub(super) fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The index of the server that has this slot.
    pub(super) fn owner(&self, slot: u16) -> Option<usize> {
        match self.owners.is_empty() {
            true => Some(0),
            false => self.owners.get(usize::from(slot))?.map(usize::from),
        }
    }

    pub(super) fn index_of(&self, server: Option<&Server>) -> Option<usize> {
        match server {
            Some(server) => self.servers.binary_search(server).ok(),
            None => Some(0),
        }
    }
}

fn parts(value: Value) -> Option<Vec<Value>> {
    match value {
        Value::Array(parts) => Some(parts),
        // In RESP3.
        Value::Map(map) => Some(
            map.inner()
                .into_iter()
                .flat_map(|(name, value)| [name.into(), value])
                .collect(),
        ),
        _ => None,
    }
}

fn number(value: &Value) -> Option<usize> {
    value.as_usize()
}

/// A server from its address, port, id and, since Redis 7, more properties. A host name is preferred to an address, because
/// certificates are for names. A server that does not know its own address has the one at which it was queried.
fn server(block: Value, queried: &Server) -> Option<Server> {
    let mut block = parts(block)?.into_iter();
    let address = text(block.next()?);
    let port = u16::try_from(number(&block.next()?)?).ok()?;
    let more = block.nth(1).and_then(parts).unwrap_or_default();
    let more = |wanted: &str| {
        let mut pairs = more.chunks_exact(2);
        let pair = pairs.find(|pair| pair[0].as_str().as_deref() == Some(wanted))?;
        text(pair[1].clone())
    };
    let is_name = |address: &String| address.parse::<std::net::IpAddr>().is_err();
    let host = match address {
        Some(name) if is_name(&name) => name,
        Some(address) => more("hostname").unwrap_or(address),
        None => more("hostname")
            .or_else(|| more("ip"))
            .unwrap_or_else(|| queried.host.to_string()),
    };
    Some(Server::new(host, port))
}

/// `None` if it is empty, or a question mark, which stands for a missing name.
fn text(value: Value) -> Option<String> {
    let text = value.into_string();
    text.filter(|text| !text.is_empty() && text != "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(parts: impl IntoIterator<Item = Value>) -> Value {
        Value::Array(parts.into_iter().collect())
    }

    fn block(address: Option<&str>, port: i64, more: &[&str]) -> Value {
        let address = address.map_or(Value::Null, Value::from);
        let more = array(more.iter().map(|it| Value::from(*it)));
        array([address, port.into(), "an id".into(), more])
    }

    fn range(first: i64, last: i64, servers: impl IntoIterator<Item = Value>) -> Value {
        let slots = [first, last].map(Value::from);
        array(slots.into_iter().chain(servers))
    }

    fn queried() -> Server {
        Server::new("queried", 1)
    }

    #[test]
    fn each_slot_has_its_primary() {
        let answer = |order: [usize; 2]| {
            let ranges = [
                range(0, 99, [block(Some("b"), 1, &[]), block(Some("c"), 1, &[])]),
                range(200, 16_383, [block(Some("a"), 2, &[])]),
            ];
            array(order.map(|index| ranges[index].clone()))
        };
        let (topology, replicas) = Topology::parse(answer([0, 1]), &queried()).unwrap();
        assert_eq!(replicas, [Server::new("c", 1)]);
        let of = |slot| {
            topology
                .owner(slot)
                .map(|it| topology.servers()[it].clone())
        };
        assert_eq!(of(0), Some(Server::new("b", 1)));
        assert_eq!(of(99), Some(Server::new("b", 1)));
        assert_eq!(of(100), None);
        assert_eq!(of(16_383), Some(Server::new("a", 2)));
        // Servers answer the ranges in different orders.
        let (again, _) = Topology::parse(answer([1, 0]), &queried()).unwrap();
        assert_eq!(again, topology);
    }

    #[test]
    fn an_invalid_answer_is_not_a_topology() {
        let server = block(Some("a"), 1, &[]);
        for answer in [
            array([]),
            Value::Null,
            array([range(0, 16_384, [server.clone()])]),
            array([range(7, 5, [server])]),
            array([range(0, 5, [])]),
            array([range(0, 5, [block(Some("a"), 70_000, &[])])]),
        ] {
            assert_eq!(Topology::parse(answer, &queried()), None);
        }
    }

    #[test]
    fn a_host_name_is_preferred_to_an_address() {
        let check = |address, more: &[&str], expected: &str| {
            let server = server(block(address, 7, more), &queried());
            assert_eq!(server, Some(Server::new(expected, 7)));
        };
        check(Some("10.0.0.1"), &[], "10.0.0.1");
        check(Some("10.0.0.1"), &["hostname", "redis-1"], "redis-1");
        check(Some("10.0.0.1"), &["hostname", ""], "10.0.0.1");
        check(Some("redis-1"), &["ip", "10.0.0.1"], "redis-1");
        check(Some("?"), &["ip", "10.0.0.1"], "10.0.0.1");
        check(Some(""), &[], "queried");
        check(None, &[], "queried");
    }
}
