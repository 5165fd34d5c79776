//! What nodes tell each other, as the text of a notification.
//!
//! A notification only saves time: a node that misses one finds out by itself what has become of its calls.

use std::collections::BTreeMap;

use forrst_lock::{Fence, LockName, NodeId, Ticket, Timestamp};
use serde::{Deserialize, Serialize};

use super::schema::Schema;

/// Postgres allows a payload of less than 8000 bytes.
const MAX_PAYLOAD: usize = 7900;

/// What another node has to be notified of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum News {
    /// A call of that node has left its queue.
    #[serde(rename = "w")]
    Woken(Ticket),
    /// A lease that was granted through that node has ended.
    #[serde(rename = "e")]
    Ended(LockName, Fence),
    /// A lease that was granted through that node has another expiry.
    #[serde(rename = "c")]
    Changed(LockName, Fence, Timestamp),
}

/// The notifications: channels, each with a payload.
pub(super) fn packed<'a>(
    schema: &Schema,
    news: impl Iterator<Item = &'a (NodeId, News)>,
) -> Vec<(String, String)> {
    let mut by_node: BTreeMap<&NodeId, Vec<String>> = BTreeMap::new();
    for (node, news) in news {
        let Ok(text) = serde_json::to_string(news) else {
            continue;
        };
        let payloads = by_node.entry(node).or_default();
        match payloads.last_mut() {
            Some(last) if last.len() + text.len() < MAX_PAYLOAD => {
                last.push(',');
                last.push_str(&text);
            }
            _ => payloads.push(text),
        }
    }
    let packed = by_node.into_iter().flat_map(|(node, payloads)| {
        let channel = schema.channel(node.as_str());
        let payloads = payloads.into_iter();
        payloads.map(move |payload| (channel.clone(), format!("[{payload}]")))
    });
    packed.collect()
}

/// Reads a payload.
pub(super) fn unpacked(payload: &str) -> Result<Vec<News>, serde_json::Error> {
    serde_json::from_str(payload)
}
