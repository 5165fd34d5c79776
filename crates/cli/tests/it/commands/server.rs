//! A server for the commands to talk to, which can be killed and started again where it was.

use std::ops::{Deref, DerefMut};

use forrst_testkit::{Node, Serve};

pub(crate) struct Server(Node);

impl Server {
    /// With locks in memory.
    pub(crate) fn start() -> Self {
        Self(serve("memory:").node())
    }

    /// With locks that survive it.
    pub(crate) fn durable() -> Self {
        Self(serve("embedded:locks").node())
    }

    /// For those who have one of these keys.
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
