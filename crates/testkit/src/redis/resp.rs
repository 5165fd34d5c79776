//! A client for the Redis protocol, as far as tests need it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// Long enough for a loaded machine, and short enough to notice a server that hangs.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// A connection to a server on this machine.
pub(crate) struct RespConnection(BufReader<TcpStream>);

impl RespConnection {
    pub(crate) fn open(port: u16, password: Option<&str>) -> io::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect_timeout(&address, ANSWERS_WITHIN)?;
        stream.set_read_timeout(Some(ANSWERS_WITHIN))?;
        let mut connection = Self(BufReader::new(stream));
        if let Some(password) = password {
            connection.ask(&["AUTH", password])?;
        }
        Ok(connection)
    }

    /// Runs a command. The items of an array are returned as lines; an error reply is an error.
    pub(crate) fn ask(&mut self, command: &[&str]) -> io::Result<String> {
        let mut text = format!("*{}\r\n", command.len());
        for word in command {
            text += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.get_mut().write_all(text.as_bytes())?;
        self.read()
    }

    fn read(&mut self) -> io::Result<String> {
        let line = self.read_line()?;
        let (kind, rest) = line.split_at_checked(1).unwrap_or_default();
        let length = || rest.parse::<i64>().map_err(io::Error::other);
        match kind {
            "+" | ":" => Ok(rest.to_owned()),
            "-" => Err(io::Error::other(rest.to_owned())),
            "$" => self.read_bulk(length()?),
            "*" => {
                let items: io::Result<Vec<_>> = (0..length()?).map(|_| self.read()).collect();
                Ok(items?.join("\n"))
            }
            _ => Err(io::Error::other(format!(
                "not the protocol of Redis: {line}"
            ))),
        }
    }

    fn read_bulk(&mut self, length: i64) -> io::Result<String> {
        // -1 stands for nil.
        let Ok(length) = usize::try_from(length) else {
            return Ok(String::new());
        };
        let mut text = vec![0; length + 2];
        self.0.read_exact(&mut text)?;
        text.truncate(length);
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn read_line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line)?;
        match line.strip_suffix(b"\r\n") {
            Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
