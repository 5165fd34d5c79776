//! The log on stderr. A thread of its own writes it, behind a bounded queue, so that a pipe that is not read blocks no request.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tracing::Subscriber;
use tracing::field::Field;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{EnvFilter, Layer};

use crate::options::{LogFormat, LogLevel};

/// How many lines may be queued. The longest have about 2 KiB.
const QUEUE: usize = 4096;
/// How much is written at once when lines are queued.
const CHUNK: usize = 32 * 1024;
/// How long writing the last lines may take.
const FLUSH_TIME: Duration = Duration::from_secs(2);
/// How many bytes of a value are shown.
const LONGEST_VALUE: usize = 1024;

/// The log, until it is [finished](Self::finish).
pub(super) struct Log {
    writer: NonBlocking,
    guard: WorkerGuard,
}

impl Log {
    pub(super) fn start(format: LogFormat) -> Self {
        let dropped = Arc::new(OnceLock::new());
        let lines = Lines {
            format,
            dropped: dropped.clone(),
            reported: 0,
            buffer: Vec::new(),
        };
        let (writer, guard) = NonBlockingBuilder::default()
            .buffered_lines_limit(QUEUE)
            .lossy(true)
            .thread_name("forrst-log")
            .finish(lines);
        // It was not set before.
        let _ = dropped.set(writer.error_counter());
        Self { writer, guard }
    }

    /// The layer that formats events, and sends them to the queue.
    pub(super) fn layer<S>(&self, format: LogFormat, level: LogLevel) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let lines = tracing_subscriber::fmt::layer()
            // Such errors would be printed to stderr, which is the log itself, and a failure there would panic.
            .log_internal_errors(false)
            .with_writer(self.writer.clone());
        let lines = match format {
            LogFormat::Text => lines
                .fmt_fields(debug_fn(write_field).delimited(" "))
                .with_ansi(io::stderr().is_terminal())
                .boxed(),
            LogFormat::Json => lines.json().boxed(),
        };
        lines.with_filter(filter(level))
    }

    /// Returns how many lines were dropped so far.
    pub(super) fn dropped(&self) -> impl Fn() -> u64 + Send + Sync + use<> {
        let dropped = self.writer.error_counter();
        move || u64::try_from(dropped.dropped_lines()).unwrap_or(u64::MAX)
    }

    /// Writes what is queued, unless stderr is not read.
    pub(super) fn finish(self) {
        let (finished, wait) = mpsc::channel();
        // If the writer is blocked, the guard prints to stdout after a second, which may be the same pipe.
        let flush = std::thread::Builder::new().spawn(move || {
            drop(self.guard);
            let _ = finished.send(());
        });
        if flush.is_ok() {
            let _ = wait.recv_timeout(FLUSH_TIME);
        }
    }
}

/// Which lines are written: `RUST_LOG`, if it is set and valid, or else the level.
fn filter(level: LogLevel) -> EnvFilter {
    let directives = match level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        // Libraries log much at these levels, and may show what callers send.
        LogLevel::Debug => "info,forrst=debug",
        LogLevel::Trace => "info,forrst=trace",
    };
    let set = std::env::var(EnvFilter::DEFAULT_ENV).ok();
    let set = set.filter(|set| !set.is_empty());
    let set = set.and_then(|set| EnvFilter::try_new(set).ok());
    set.unwrap_or_else(|| EnvFilter::new(directives))
}

/// The writer of the thread: stderr, with a line about dropped lines.
struct Lines {
    format: LogFormat,
    dropped: Arc<OnceLock<ErrorCounter>>,
    reported: usize,
    buffer: Vec<u8>,
}

impl Lines {
    fn report_dropped(&mut self) -> io::Result<()> {
        let dropped = self.dropped.get().map_or(0, ErrorCounter::dropped_lines);
        let count = dropped - self.reported;
        if count == 0 {
            return Ok(());
        }
        self.reported = dropped;
        let at = chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Micros, true);
        let message = format!("({count} lines dropped)");
        match self.format {
            LogFormat::Text => writeln!(self.buffer, "{at}  WARN forrst::log: {message}"),
            LogFormat::Json => writeln!(
                self.buffer,
                r#"{{"timestamp":"{at}","level":"WARN","fields":{{"message":"{message}"}},"target":"forrst::log"}}"#
            ),
        }
    }

    fn write_out(&mut self) -> io::Result<()> {
        let written = io::stderr().write_all(&self.buffer);
        // Lines that cannot be written are lost.
        self.buffer.clear();
        written
    }
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(line);
        if self.buffer.len() >= CHUNK {
            self.write_out()?;
        }
        Ok(line.len())
    }

    /// Called when the queue is empty: the dropped lines came after all that were written.
    fn flush(&mut self) -> io::Result<()> {
        self.report_dropped()?;
        self.write_out()
    }
}

/// Writes one field of a text line. A value cannot end the line, control the terminal, or be longer than [`LONGEST_VALUE`].
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let name = field.name();
    if name.starts_with("log.") {
        return Ok(());
    }
    let value = match name {
        "duration_ms" => format!("{value:.3?}"),
        _ => format!("{value:?}"),
    };
    match (name, writer.has_ansi_escapes()) {
        ("message", _) => {}
        (_, false) => write!(writer, "{name}=")?,
        (_, true) => write!(writer, "\u{1b}[3m{name}\u{1b}[0m\u{1b}[2m=\u{1b}[0m")?,
    }
    let cut = value.floor_char_boundary(LONGEST_VALUE);
    for character in value[..cut].chars() {
        match character {
            '\u{2028}' | '\u{2029}' => write!(writer, "{}", character.escape_unicode())?,
            character if character.is_control() => {
                write!(writer, "{}", character.escape_default())?;
            }
            character => writer.write_char(character)?,
        }
    }
    match cut < value.len() {
        true => writer.write_char('…'),
        false => Ok(()),
    }
}
