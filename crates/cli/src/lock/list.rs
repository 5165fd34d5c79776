//! `forrst lock list`: the held locks, once or repeatedly.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};
use clap::Args;
use forrst_client::{Client, LockInfo, Page};
use serde_json::value::RawValue;

use super::display;
use crate::connection::Connection;
use crate::error::CommandError;
use crate::output::{Table, check_written, print_error};
use crate::time;

/// The most that a server puts on one page.
const PAGE_SIZE: usize = 1000;

/// List the locks that are held.
#[derive(Args)]
#[command(after_help = format!("\
Examples:
  forrst lock list
  forrst lock list --prefix export: --watch
  forrst lock list --json | jq -r '.locks[].key'

With --json, --watch prints one document a line.

{}", crate::exit::HELP))]
pub(crate) struct ListArguments {
    /// Only locks whose full key begins with this; lock: may be left out
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    prefix: String,

    /// How many at most [default: all]
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,

    /// Repeat the list until interrupted
    #[arg(long)]
    watch: bool,

    /// How often to repeat it
    #[arg(long, value_name = "DURATION", default_value = "1s", requires = "watch", value_parser = time::parse)]
    interval: Duration,

    #[command(flatten)]
    connection: Connection,

    /// Print `{"locks": […], "cursor": …}` as the server sends them
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(arguments: ListArguments) -> Result<(), CommandError> {
    let client = arguments.connection.client()?;
    if !arguments.watch {
        let text = arguments.render(&client).await?;
        return check_written(write_out(&text));
    }
    let is_terminal = io::stdout().is_terminal() && !arguments.json;
    let mut text = arguments.render(&client).await?;
    loop {
        let drawn = if is_terminal { redrawn(&text) } else { text };
        let drawing = write_out(&drawn);
        if drawing.is_err() {
            return check_written(drawing);
        }
        tokio::time::sleep(arguments.interval).await;
        // A server that cannot be reached for a moment does not end the watch.
        text = match arguments.render(&client).await {
            Ok(text) => text,
            Err(error) if is_terminal => error.to_text(),
            Err(error) => {
                print_error(&error.to_text());
                String::new()
            }
        };
    }
}

/// Redraws the screen over the previous list, which flickers less than clearing it first.
fn redrawn(text: &str) -> String {
    let has_colours = AutoStream::choice(&io::stdout()) != ColorChoice::Never;
    let plain = if has_colours {
        text.to_owned()
    } else {
        strip_str(text).to_string()
    };
    let lines: String = plain
        .lines()
        .map(|line| format!("{line}\x1b[K\n"))
        .collect();
    format!("\x1b[H{lines}\x1b[J")
}

fn write_out(text: &str) -> io::Result<()> {
    // Not through `anstream`: the cursor has to move even if colours are off, and `redrawn` has removed them then.
    if text.starts_with("\x1b[H") {
        let mut out = io::stdout().lock();
        return out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
    let mut out = anstream::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

impl ListArguments {
    async fn render(&self, client: &Client) -> Result<String, CommandError> {
        let page = self.fetch(client).await?;
        if self.json {
            let json = serde_json::to_string(&page).unwrap_or_default();
            return Ok(format!("{json}\n"));
        }
        let held = page.locks.iter();
        let held = held.filter_map(|lock| serde_json::from_str(lock.get()).ok());
        let mut held: Vec<LockInfo> = held.collect();
        // Each store has an order of its own.
        held.sort_by(|one, other| one.full_key.cmp(&other.full_key));
        Ok(table(&held))
    }

    /// All pages up to the limit, as one, with locks as the server sent them.
    async fn fetch(&self, client: &Client) -> Result<Page<Box<RawValue>>, CommandError> {
        let limit = self.limit.unwrap_or(usize::MAX);
        let mut all = self.fetch_page(client, limit, None).await?;
        while all.locks.len() < limit
            && let Some(cursor) = &all.cursor
        {
            let missing = limit - all.locks.len();
            let page = self.fetch_page(client, missing, Some(cursor)).await?;
            all.locks.extend(page.locks);
            all.cursor = page.cursor;
        }
        Ok(all)
    }

    async fn fetch_page(
        &self,
        client: &Client,
        limit: usize,
        cursor: Option<&str>,
    ) -> Result<Page<Box<RawValue>>, CommandError> {
        let limit = limit.min(PAGE_SIZE);
        let locks = client.locks();
        let page = locks.list(&full_prefix(&self.prefix), Some(limit), cursor);
        page.raw()
            .await
            .map_err(|error| self.connection.failed(error))
    }
}

fn full_prefix(prefix: &str) -> String {
    if prefix.is_empty() || prefix.starts_with("lock:") {
        prefix.to_owned()
    } else {
        format!("lock:{prefix}")
    }
}

/// One row for each lock, with its first holder.
fn table(locks: &[LockInfo]) -> String {
    if locks.is_empty() {
        return "No locks are held\n".to_owned();
    }
    // Only servers with API keys know their callers.
    let mut holders = locks.iter().flat_map(|lock| &lock.holders);
    let has_callers = holders.any(|holder| holder.caller.is_some());
    let mut head = vec![
        "KEY", "KIND", "OWNER", "FENCE", "ACQUIRED", "EXPIRES", "WAITERS",
    ];
    head.extend(has_callers.then_some("CALLER"));
    let mut table = Table::new(&head);
    for lock in locks {
        let Some(first) = lock.holder() else { continue };
        let mut cells = vec![
            lock.full_key.clone(),
            display::kind(lock),
            first.owner.clone(),
            display::fence(first),
            display::acquired(first),
            display::expires(first),
            lock.waiters.to_string(),
        ];
        cells.extend(has_callers.then(|| first.caller.clone().unwrap_or_default()));
        table.row(&cells);
    }
    table.text()
}
