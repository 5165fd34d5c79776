//! One connection with the requests of one caller, or of many that are multiplexed. Each request in flight has a slot.

use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::schedule::Schedule;
use super::{Pace, Tally, Window};
use crate::wire::{Codec, Decoded};

/// How long after the end of a run answers may arrive. A request without an answer counts with the time it has waited.
const DRAIN: Duration = Duration::from_secs(1);

/// The load on one connection.
pub(super) struct Plan {
    pub(super) number: usize,
    pub(super) connections: usize,
    pub(super) slots: usize,
    pub(super) pace: Pace,
    pub(super) window: Window,
    /// The first of its serial numbers, which no other run uses.
    pub(super) first_serial: u64,
}

pub(super) async fn run<S>(stream: S, codec: Box<dyn Codec>, plan: Plan) -> Result<Tally, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let mut connection = Connection {
        schedule: Schedule::new(plan.pace, plan.window, plan.number, plan.connections),
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
    /// The due time of each slot's request while it is in flight.
    due: Vec<Option<Instant>>,
    serial: u64,
    tally: Tally,
    out: Vec<u8>,
    input: Vec<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Connection<S> {
    async fn run(&mut self) -> Result<(), String> {
        let failed = |error| format!("the connection failed: {error}");
        let timer = self.schedule.timer().map_err(failed)?;
        let drain_until = self.plan.window.closes + DRAIN;
        loop {
            self.send_due_requests();
            if !self.out.is_empty() {
                self.stream.write_all(&self.out).await.map_err(failed)?;
                self.out.clear();
            }
            if self.is_done() {
                return Ok(());
            }
            if timer.is_some() && Instant::now() >= drain_until {
                self.record_unanswered();
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
                    self.read_answers()?;
                }
                ticked = tick => ticked.map_err(failed)?,
            }
        }
    }

    fn send_due_requests(&mut self) {
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

    fn read_answers(&mut self) -> Result<(), String> {
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
                    let due = due.ok_or_else(|| {
                        format!("an answer for slot {slot}, which has no request")
                    })?;
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
        let none_in_flight = self.free.len() == self.plan.slots;
        none_in_flight && self.schedule.is_over()
    }

    /// Requests without an answer have a latency of at least the time until now.
    fn record_unanswered(&mut self) {
        let now = Instant::now();
        for due in std::mem::take(&mut self.due).into_iter().flatten() {
            self.record(due, now);
        }
        while let Some(due) = self.schedule.next(now) {
            self.record(due, now);
        }
    }
}
