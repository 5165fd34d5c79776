//! A wall clock that differs from that of this machine, by means of libfaketime.
//!
//! Only `CLOCK_REALTIME` differs, by a constant: Redis takes the time of `TIME` and of expiry from it. Timers run as usual.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{fs, io};

/// How far the clock of a process is from that of this machine.
#[derive(Debug, Clone)]
pub(super) struct Clock {
    /// Seconds with their sign, as libfaketime reads them.
    offset: String,
}

impl Clock {
    pub(super) fn ahead(by: Duration) -> Self {
        let offset = format!("+{:.3}", by.as_secs_f64());
        Self { offset }
    }

    pub(super) fn behind(by: Duration) -> Self {
        let offset = format!("-{:.3}", by.as_secs_f64());
        Self { offset }
    }

    pub(super) fn set(&self, command: &mut Command) {
        // jemalloc reads the clock while it starts, and libfaketime allocates while it starts: with libc's allocator in
        // front of jemalloc's there is no such circle (https://github.com/wolfcw/libfaketime/issues/130).
        let preloaded = format!("{} libc.so.6", library().display());
        command
            .env("LD_PRELOAD", preloaded)
            .env("FAKETIME", &self.offset)
            // Older and newer releases name it differently.
            .env("DONT_FAKE_MONOTONIC", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("NO_FAKE_STAT", "1");
    }

    /// Removes what libfaketime leaves behind in `/dev/shm` when its process is killed. One that runs needs only what
    /// it has mapped.
    pub(super) fn forget(process: u32) {
        for name in ["faketime_shm_", "sem.faketime_sem_"] {
            let _ = fs::remove_file(format!("/dev/shm/{name}{process}"));
        }
    }
}

/// The one for programs with threads: `/usr/lib/<architecture>/faketime` in Debian, `lib/faketime` where it was built.
fn library() -> PathBuf {
    let roots = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(Path::new);
    let folders = roots.into_iter().flat_map(|root| {
        let nested = entries(root).unwrap_or_default();
        [vec![root.to_owned()], nested].concat()
    });
    let mut libraries = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1"));
    libraries
        .find(|library| library.is_file())
        .expect("libfaketime is not installed: `./test` does that, or `apt-get install faketime`")
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}
