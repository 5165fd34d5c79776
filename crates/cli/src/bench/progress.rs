//! The progress bar of a run, on a terminal.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::task::JoinHandle;

use super::worker::Load;

/// A bar on a terminal, and nothing elsewhere.
pub(super) struct Progress {
    bar: ProgressBar,
    updates: JoinHandle<()>,
}

impl Progress {
    pub(super) fn start(duration: Duration, is_quiet: bool, load: Arc<Load>) -> Self {
        let total = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let bar = if is_quiet || !std::io::stderr().is_terminal() {
            ProgressBar::hidden()
        } else {
            ProgressBar::new(total)
        };
        let style = ProgressStyle::with_template("{elapsed:>4} {bar:40} {msg}");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        let updates = tokio::spawn(update(bar.clone(), load));
        Self { bar, updates }
    }

    /// Removes the bar.
    pub(super) fn finish(self) {
        self.updates.abort();
        self.bar.finish_and_clear();
    }
}

async fn update(bar: ProgressBar, load: Arc<Load>) {
    let started_at = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    let (mut seen, mut seen_at) = (0, started_at);
    loop {
        ticks.tick().await;
        let elapsed = u64::try_from(started_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        bar.set_position(elapsed);
        // A rate over less than a second would jump.
        if seen_at.elapsed() >= Duration::from_secs(1) {
            let grants = load.checker.grants();
            let violations = load.checker.violation_count();
            bar.set_message(format!("{}/s, {violations} violations", grants - seen));
            (seen, seen_at) = (grants, Instant::now());
        }
    }
}
