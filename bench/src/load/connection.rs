//! One connection, with the requests of one caller or of many.

use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::schedule::Schedule;
use super::{Pace, Tally, Window};
use crate::wire::{Codec, Decoded};

/// How long answers may take that are still due at the end. What is not answered then counts with the time it has waited.
const DRAIN: Duration = Duration::from_secs(1);

/// What one connection does.
pub(super) struct Plan {
    pub(super) number: usize,
    pub(super) connections: usize,
    pub(super) slots: usize,
    pub(super) pace: Pace,
    pub(super) window: Window,
    /// The first part of its keys, so that no other run has them.
    pub(super) first_serial: u64,
}

pub(super) async fn run<S>(stream: S, codec: Box<dyn Codec>, plan: Plan) -> Result<Tally, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let mut connection = Connection {
        schedule: Schedule::of(plan.pace, plan.window, plan.number, plan.connections),
        free: (0..plan.slots).rev().collect(),
        due: vec![None; plan.slots],
        serial: plan.first_serial,
        tally: Tally::new(),
        out: codec.hello(),
        input: Vec::with_capacity(64 * 1024),
        codec,
        stream,
        plan,
    };
    connection.run().await?;
    Ok(connection.tally)
}

struct Connection<S> {
    stream: S,
    codec: Box<dyn Codec>,
    plan: Plan,
    schedule: Schedule,
    free: Vec<usize>,
    /// Since when the request of each slot has been due, while it is on its way.
    due: Vec<Option<Instant>>,
    serial: u64,
    tally: Tally,
    out: Vec<u8>,
    input: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Connection<S> {
    async fn run(&mut self) -> Result<(), String> {
        let failed = |error| format!("the connection broke: {error}");
        let timer = self.schedule.timer().map_err(failed)?;
        let gives_up_at = self.plan.window.closes + DRAIN;
        loop {
            self.send_what_is_due();
            if !self.out.is_empty() {
                self.stream.write_all(&self.out).await.map_err(failed)?;
                self.out.clear();
            }
            if self.is_done() {
                return Ok(());
            }
            if timer.is_some() && Instant::now() >= gives_up_at {
                self.give_up();
                return Ok(());
            }
            let ticks = timer.as_ref().filter(|_| !self.free.is_empty());
            let tick = async {
                match ticks {
                    Some(timer) => timer.tick().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                read = self.stream.read_buf(&mut self.input) => {
                    if read.map_err(failed)? == 0 {
                        return Err("the server closed the connection".to_owned());
                    }
                    self.take_answers()?;
                }
                ticked = tick => ticked.map_err(failed)?,
            }
        }
    }

    fn send_what_is_due(&mut self) {
        if !self.codec.is_ready() || self.free.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(slot) = self.free.last().copied()
            && let Some(due) = self.schedule.next(now)
        {
            self.free.pop();
            self.due[slot] = Some(due);
            self.serial += 1;
            self.codec.encode(slot, self.serial, &mut self.out);
        }
    }

    fn take_answers(&mut self) -> Result<(), String> {
        let now = Instant::now();
        let mut read = 0;
        loop {
            let decoded = self.codec.decode(&self.input[read..], &mut self.out)?;
            match decoded {
                Decoded::Incomplete => break,
                Decoded::Other(bytes) => read += bytes,
                Decoded::Answer { bytes, slot } => {
                    read += bytes;
                    let due = self.due.get_mut(slot).and_then(Option::take);
                    let due = due.ok_or_else(|| format!("an answer to nothing, for {slot}"))?;
                    self.free.push(slot);
                    self.record(due, now);
                }
            }
        }
        self.input.drain(..read);
        Ok(())
    }

    fn record(&mut self, due: Instant, now: Instant) {
        if self.schedule.counts(due, now) {
            self.tally.record(now - due);
        }
    }

    fn is_done(&self) -> bool {
        let none_under_way = self.free.len() == self.plan.slots;
        none_under_way && self.schedule.is_over()
    }

    /// What was due and has no answer has waited until now at least.
    fn give_up(&mut self) {
        let now = Instant::now();
        for due in std::mem::take(&mut self.due).into_iter().flatten() {
            self.record(due, now);
        }
        while let Some(due) = self.schedule.next(now) {
            self.record(due, now);
        }
    }
}
