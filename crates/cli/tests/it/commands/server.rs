//! A server for the commands, which can be killed and started again at the same address.

use std::ops::{Deref, DerefMut};

use forrst_testkit::{Node, Serve, SharedRedis};

pub(crate) struct Server(Node);

impl Server {
    /// With locks in memory.
    pub(crate) fn start() -> Self {
        Self(serve("memory:").node())
    }

    /// With locks that survive a restart.
    pub(crate) fn durable() -> Self {
        Self(serve("embedded:locks").node())
    }

    /// With locks in Redis, which it shares with others.
    pub(crate) fn sharing(redis: &SharedRedis) -> Self {
        let store = ["--store", &redis.url(), "--redis-prefix", redis.prefix()];
        Self(Serve::new(env!("CARGO_BIN_EXE_forrst"), &store).node())
    }

    /// With these API keys.
    pub(crate) fn with_keys(keys: &str) -> Self {
        let serve = serve("memory:")
            .argument("--auth-file")
            .argument("keys.toml");
        std::fs::write(serve.path("keys.toml"), keys).unwrap();
        Self(serve.node())
    }
}

fn serve(store: &str) -> Serve {
    let arguments = ["--demo", "--store", store, "--durability", "process"];
    Serve::new(env!("CARGO_BIN_EXE_forrst"), &arguments)
}

impl Deref for Server {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.0
    }
}

impl DerefMut for Server {
    fn deref_mut(&mut self) -> &mut Node {
        &mut self.0
    }
}
