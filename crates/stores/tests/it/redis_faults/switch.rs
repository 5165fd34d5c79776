//! An address whose server can be replaced by another, like a virtual IP.

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Forwards connections to one server at a time.
pub(super) struct Switch {
    address: SocketAddr,
    upstream: Arc<Mutex<Upstream>>,
}

struct Upstream {
    port: u16,
    open: Vec<TcpStream>,
    is_closed: bool,
}

impl Switch {
    pub(super) fn start(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let upstream = Arc::new(Mutex::new(Upstream {
            port,
            open: Vec::new(),
            is_closed: false,
        }));
        let accepting = upstream.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let mut upstream = accepting.lock().unwrap();
                if upstream.is_closed {
                    return;
                }
                // If the server does not accept connections, the client's is closed.
                if let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, upstream.port)) {
                    join(&client, &server).unwrap();
                    upstream.open.extend([client, server]);
                }
            }
        });
        Self { address, upstream }
    }

    pub(super) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Switches to another server, and closes all connections.
    pub(super) fn switch_to(&self, port: u16) {
        let mut upstream = self.upstream.lock().unwrap();
        upstream.port = port;
        upstream.close();
    }
}

impl Upstream {
    fn close(&mut self) {
        for stream in self.open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let mut upstream = self.upstream.lock().unwrap();
        upstream.is_closed = true;
        upstream.close();
        drop(upstream);
        // Wakes the thread that accepts, so that it ends.
        let _ = TcpStream::connect(self.address);
    }
}

/// Copies the data in both directions until either side is closed.
fn join(client: &TcpStream, server: &TcpStream) -> io::Result<()> {
    for (from, to) in [(client, server), (server, client)] {
        let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
        from.set_nodelay(true)?;
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}
