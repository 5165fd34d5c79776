//! Spare file descriptors, so that a file can be read when the process has none left: a key must be revocable at any time.

use std::fs::File;
use std::io;
use std::sync::{Mutex, PoisonError};

/// More than one, because a new connection may take the descriptor that was freed for a file.
const SPARE: usize = 4;

/// Open files that exist only to be closed.
#[derive(Debug)]
pub(crate) struct SpareDescriptors(Mutex<Vec<File>>);

impl SpareDescriptors {
    pub(crate) fn new() -> Self {
        let spare = Self(Mutex::default());
        spare.refill(&mut spare.files());
        spare
    }

    /// Runs `read`, which opens one file at a time. While it fails for lack of descriptors, frees one and runs it again.
    pub(crate) fn with<T, E>(
        &self,
        mut read: impl FnMut() -> Result<T, E>,
        is_out_of_descriptors: impl Fn(&E) -> bool,
    ) -> Result<T, E> {
        let mut files = self.files();
        let outcome = loop {
            match read() {
                Err(error) if is_out_of_descriptors(&error) && files.pop().is_some() => {}
                outcome => break outcome,
            }
        };
        self.refill(&mut files);
        outcome
    }

    fn files(&self) -> std::sync::MutexGuard<'_, Vec<File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refill(&self, files: &mut Vec<File>) {
        while files.len() < SPARE
            && let Ok(file) = File::open("/dev/null")
        {
            files.push(file);
        }
    }
}

/// Whether the process, or the machine, has no descriptor left.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}
