//! A wall clock that differs from that of this machine, with libfaketime.
//!
//! Only `CLOCK_REALTIME` differs, by a constant offset: Redis uses it for `TIME` and for expiry. Timers run as usual.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{fs, io};

/// The offset of the clock of a process from that of this machine.
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
        // jemalloc reads the clock while it starts, and libfaketime allocates memory while it starts. Preloading libc's allocator
        // breaks this cycle (https://github.com/wolfcw/libfaketime/issues/130).
        let preloaded = format!("{} libc.so.6", library().display());
        command
            .env("LD_PRELOAD", preloaded)
            .env("FAKETIME", &self.offset)
            // Older and newer releases name it differently.
            .env("DONT_FAKE_MONOTONIC", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("NO_FAKE_STAT", "1");
    }

    /// Removes the files in `/dev/shm` that libfaketime leaves behind when its process is killed. A running process has mapped them, and
    /// does not need the names.
    pub(super) fn forget(process: u32) {
        for name in ["faketime_shm_", "sem.faketime_sem_"] {
            let _ = fs::remove_file(format!("/dev/shm/{name}{process}"));
        }
    }
}

/// The library for programs with threads: in `/usr/lib/<architecture>/faketime` on Debian, in `lib/faketime` if built from source.
fn library() -> PathBuf {
    let roots = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(Path::new);
    let folders = roots.into_iter().flat_map(|root| {
        let nested = entries(root).unwrap_or_default();
        [vec![root.to_owned()], nested].concat()
    });
    let mut libraries = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1"));
    libraries
        .find(|library| library.is_file())
        .expect("libfaketime is not installed: run `./test`, or `apt-get install faketime`")
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}
