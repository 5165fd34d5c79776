//! `forrst serve` in a folder of its own.

use std::path::Path;

use forrst_testkit::Serve;

const FORRST: &str = env!("CARGO_BIN_EXE_forrst");

/// On a free port.
pub(crate) fn serve(arguments: &[&str]) -> Serve {
    Serve::new(FORRST, arguments)
}

/// On a free port, with locks in memory and functions to call.
pub(crate) fn demo(arguments: &[&str]) -> Serve {
    serve(&[&["--store", "memory:", "--demo"], arguments].concat())
}

/// With these arguments only.
pub(crate) fn bare(arguments: &[&str]) -> Serve {
    Serve::bare(FORRST, arguments)
}

/// A path as the server prints it.
pub(crate) fn shown(path: &Path) -> String {
    path.display().to_string()
}
