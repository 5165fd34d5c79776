//! Finds the members of an object by their names, and leaves them raw. A repeated name is a problem, because it is unclear
//! which of the two is meant.

use super::path::Path;
use crate::problems::Problems;
use crate::scan::{NotJson, Scanner, unescape};

/// A member of an object, by its name.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Member<T> {
    #[default]
    Absent,
    Present(T),
    /// More than once, which has been noted as a problem.
    Repeated,
}

/// A member as its text.
pub(super) type Raw<'a> = Member<&'a str>;

impl<T> Member<T> {
    pub(super) fn put(&mut self, value: T, path: Path<'_>, problems: &mut Problems) {
        *self = match self {
            Self::Absent => Self::Present(value),
            Self::Repeated => Self::Repeated,
            Self::Present(_) => {
                problems.invalid(path, || format!("`{path}` appears more than once"));
                Self::Repeated
            }
        };
    }
}

/// The members with these names of the object that comes next. All others are skipped.
pub(super) fn named<'a, const N: usize>(
    scanner: &mut Scanner<'a>,
    names: &[&'static str; N],
    path: Path<'_>,
    problems: &mut Problems,
) -> Result<[Raw<'a>; N], NotJson> {
    let mut members = [Member::Absent; N];
    let mut object = scanner.enter();
    while let Some(key) = scanner.next_key(&mut object)? {
        let value = scanner.value()?;
        if let Some(index) = index_in(names, key) {
            members[index].put(value, path.member(names[index]), problems);
        }
    }
    Ok(members)
}

/// Which of some names a key is.
pub(super) fn name_in<'n>(names: &[&'n str], key: &str) -> Option<&'n str> {
    index_in(names, key).map(|index| names[index])
}

fn index_in(names: &[&str], key: &str) -> Option<usize> {
    // A key that is not Unicode is not one of the names either.
    let key = unescape(key)?;
    names.iter().position(|name| *name == key)
}
