//! Loads the vectors: those embedded in this crate, or those of another folder with the same layout.

use std::path::{Path, PathBuf};
use std::{fs, io};

use include_dir::{Dir, include_dir};

use crate::vector::{Vector, VectorError};

static EMBEDDED: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/vectors");

/// Why the vectors could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// A file is not a valid vector.
    #[error("{path}: {reason}")]
    Vector {
        /// `group/name.json`.
        path: String,
        /// What is wrong with it.
        reason: VectorError,
    },
    /// The folder cannot be read.
    #[error("{}: {reason}", path.display())]
    Folder {
        /// The file or folder.
        path: PathBuf,
        /// The error of the file system.
        reason: io::Error,
    },
}

/// The vectors of this crate, in order of their paths.
pub fn embedded() -> Result<Vec<Vector>, CatalogueError> {
    let files = EMBEDDED.dirs().flat_map(Dir::files).map(|file| {
        let text = file.contents_utf8().unwrap_or_default();
        (file.path().to_owned(), text.to_owned())
    });
    read(files.collect())
}

/// The vectors of a folder laid out as this crate's: `group/name.json`.
pub fn in_folder(folder: &Path) -> Result<Vec<Vector>, CatalogueError> {
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        |reason| CatalogueError::Folder { path, reason }
    };
    let entries = |path: &Path| -> Result<Vec<PathBuf>, CatalogueError> {
        fs::read_dir(path)
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
            .map_err(unreadable(path))
    };
    let mut files = Vec::new();
    for group in entries(folder)?.iter().filter(|path| path.is_dir()) {
        for file in entries(group)? {
            let text = fs::read_to_string(&file).map_err(unreadable(&file))?;
            files.push((file, text));
        }
    }
    read(files)
}

fn read(mut files: Vec<(PathBuf, String)>) -> Result<Vec<Vector>, CatalogueError> {
    files.retain(|(path, _)| {
        path.extension()
            .is_some_and(|extension| extension == "json")
    });
    files.sort();
    let mut vectors = Vec::new();
    for (path, text) in files {
        let name_of = |path: Option<&Path>| {
            let name = path.and_then(Path::file_stem);
            name.unwrap_or_default().to_string_lossy().into_owned()
        };
        let (group, name) = (name_of(path.parent()), name_of(Some(&path)));
        let parsed = Vector::parse(&group, &name, &text);
        vectors.extend(parsed.map_err(|reason| CatalogueError::Vector {
            path: format!("{group}/{name}.json"),
            reason,
        })?);
    }
    Ok(vectors)
}
