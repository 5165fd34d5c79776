//! A link to a server, which can lose what the server says.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::server::Server;

#[derive(Clone, Copy)]
enum Mode {
    Pass,
    /// So many answers are lost, and the connection with each of them.
    Lose(usize),
    /// Nothing is answered any more on a connection that had an answer to bring, and nobody is told.
    Hole,
}

pub(crate) struct Link {
    address: String,
    mode: Arc<Mutex<Mode>>,
}

impl Link {
    pub(crate) fn to(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mode = Arc::new(Mutex::new(Mode::Pass));
        let target = server.address().to_owned();
        let told = mode.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                connect(client, &target, &told);
            }
        });
        Self { address, mode }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn pass(&self) {
        *self.mode.lock().unwrap() = Mode::Pass;
    }

    pub(crate) fn lose_answers(&self, count: usize) {
        *self.mode.lock().unwrap() = Mode::Lose(count);
    }

    pub(crate) fn swallow(&self) {
        *self.mode.lock().unwrap() = Mode::Hole;
    }
}

fn connect(mut client: TcpStream, server: &str, mode: &Arc<Mutex<Mode>>) {
    let Ok(mut server) = TcpStream::connect(server) else {
        return;
    };
    let (mut to_client, mut from_server) =
        (client.try_clone().unwrap(), server.try_clone().unwrap());
    let mode = mode.clone();
    thread::spawn(move || {
        let _ = std::io::copy(&mut client, &mut server);
        let _ = server.shutdown(Shutdown::Both);
    });
    thread::spawn(move || {
        answer(&mut from_server, &mut to_client, &mode);
        let _ = to_client.shutdown(Shutdown::Both);
        let _ = from_server.shutdown(Shutdown::Both);
    });
}

fn answer(from: &mut TcpStream, to: &mut TcpStream, mode: &Mutex<Mode>) {
    let mut bytes = [0; 16 * 1024];
    let mut is_silent = false;
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let mut mode = mode.lock().unwrap();
        match *mode {
            Mode::Lose(left @ 1..) => {
                *mode = Mode::Lose(left - 1);
                return;
            }
            Mode::Hole => is_silent = true,
            Mode::Lose(0) | Mode::Pass => {}
        }
        drop(mode);
        if !is_silent && to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}
