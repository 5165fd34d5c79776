//! Where the reader is in a request. A path is linked to its parent, so that it costs nothing until there is a problem to report.

use std::fmt;

use crate::problems::Problems;
use crate::{ErrorCode, ErrorObject, Pointer};

/// A location in the request, linked to the one that contains it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Path<'p> {
    Root,
    Member(&'p Path<'p>, &'p str),
    Element(&'p Path<'p>, usize),
}

impl<'p> Path<'p> {
    pub(super) fn member(&'p self, name: &'p str) -> Path<'p> {
        Path::Member(self, name)
    }

    pub(super) fn element(&'p self, index: usize) -> Path<'p> {
        Path::Element(self, index)
    }

    pub(super) fn to_pointer(self) -> Pointer {
        match self {
            Self::Root => Pointer::root(),
            Self::Member(parent, name) => parent.to_pointer().key(name),
            Self::Element(parent, index) => parent.to_pointer().index(index),
        }
    }
}

impl Problems {
    pub(super) fn invalid(&mut self, path: Path<'_>, message: impl FnOnce() -> String) {
        self.note(|| ErrorObject::new(ErrorCode::InvalidRequest, message()).at(path.to_pointer()));
    }
}

/// As in code: `extensions[0].urn`.
impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str("request"),
            Self::Member(Self::Root, name) => f.write_str(name),
            Self::Member(parent, name) => write!(f, "{parent}.{name}"),
            Self::Element(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_reads_as_code_and_as_a_pointer() {
        let extensions = Path::Root.member("extensions");
        let extension = extensions.element(3);
        let urn = extension.member("urn");
        assert_eq!(urn.to_string(), "extensions[3].urn");
        assert_eq!(urn.to_pointer().as_str(), "/extensions/3/urn");
        assert_eq!(Path::Root.to_pointer().as_str(), "");
    }
}
