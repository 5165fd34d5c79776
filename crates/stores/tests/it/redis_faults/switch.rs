//! An address whose server can be replaced by another, like the service address of a cluster manager.

use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Forwards connections to one server at a time.
pub(super) struct Switch {
    address: SocketAddr,
    to: Arc<Mutex<To>>,
}

struct To {
    port: u16,
    open: Vec<TcpStream>,
    is_over: bool,
}

impl Switch {
    pub(super) fn to(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let to = Arc::new(Mutex::new(To {
            port,
            open: Vec::new(),
            is_over: false,
        }));
        let accepting = to.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let mut to = accepting.lock().unwrap();
                if to.is_over {
                    return;
                }
                // If the server does not accept connections, the client's is closed.
                if let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, to.port)) {
                    join(&client, &server).unwrap();
                    to.open.extend([client, server]);
                }
            }
        });
        Self { address, to }
    }

    pub(super) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Switches to another server, and closes all connections.
    pub(super) fn turn_to(&self, port: u16) {
        let mut to = self.to.lock().unwrap();
        to.port = port;
        to.close();
    }
}

impl To {
    fn close(&mut self) {
        for stream in self.open.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let mut to = self.to.lock().unwrap();
        to.is_over = true;
        to.close();
        drop(to);
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
