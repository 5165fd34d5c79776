//! Loads the vectors for clients, which are embedded in this crate.

use std::path::Path;

use include_dir::{Dir, include_dir};

use super::vector::{ClientVector, Reason};

static EMBEDDED: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/client");

/// The JSON Schema of the vectors is in the same folder.
const SCHEMA: &str = "schema";

/// A file is not a valid vector for clients.
#[derive(Debug, thiserror::Error)]
#[error("client/{name}.json: {reason}")]
pub struct ClientVectorError {
    name: String,
    reason: Reason,
}

/// The vectors for clients, in order of their names.
///
/// # Errors
///
/// The first file that is not a valid vector.
pub fn embedded_client_vectors() -> Result<Vec<ClientVector>, ClientVectorError> {
    let mut files: Vec<(String, &str)> = EMBEDDED
        .files()
        .filter_map(|file| Some((name_of(file.path())?, file.contents_utf8()?)))
        .collect();
    files.sort_unstable();
    files
        .into_iter()
        .map(|(name, text)| {
            ClientVector::parse(&name, text).map_err(|reason| ClientVectorError { name, reason })
        })
        .collect()
}

fn name_of(path: &Path) -> Option<String> {
    let name = path.file_stem()?.to_str()?;
    let is_vector = path.extension()? == "json" && name != SCHEMA;
    is_vector.then(|| name.to_owned())
}
