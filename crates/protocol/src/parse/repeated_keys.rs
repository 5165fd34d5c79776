//! Finds keys that another JSON parser may read differently.
//!
//! `{"amount": 1, "amount": 100}` is JSON, and what it means depends on the parser: a proxy may check the first amount, and
//! the function charge the second. The same goes for keys that are not Unicode, and for the one that [`serde_json`] reserves.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::path::Path;
use crate::problems::{Excerpt, Problems};
use crate::scan::{NotJson, Open, Scanner, unescape};
use crate::{ErrorCode, ErrorObject, Pointer};

/// `serde_json` replaces an object that begins with this key by the JSON text behind it, so a function would receive
/// something else than was checked.
const RAW_VALUE: &str = "$serde_json::private::RawValue";

/// The search, which reuses its memory from one object to the next.
#[derive(Default)]
pub(super) struct RepeatedKeys<'a> {
    levels: SmallVec<[Level<'a>; 4]>,
    keys: SmallVec<[Cow<'a, str>; 8]>,
}

impl<'a> RepeatedKeys<'a> {
    /// Notes every key that appears more than once in one object, at any depth of the given one.
    pub(super) fn note(&mut self, object: &'a str, path: Path<'_>, problems: &mut Problems) {
        let walk = Walk {
            path,
            problems,
            levels: &mut self.levels,
            keys: &mut self.keys,
        };
        let read = walk.run(Scanner::new(object));
        debug_assert!(read.is_ok(), "the text is known to be JSON");
    }
}

struct Walk<'a, 'p> {
    path: Path<'p>,
    problems: &'p mut Problems,
    levels: &'p mut SmallVec<[Level<'a>; 4]>,
    /// The keys of all objects that are open, those of the innermost last.
    keys: &'p mut SmallVec<[Cow<'a, str>; 8]>,
}

/// An object or array that is open, and how far into it the walk is.
enum Level<'a> {
    Object {
        open: Open,
        first_key: usize,
        /// The key that the walk is at, with its quotes.
        key: &'a str,
    },
    Array {
        open: Open,
        /// The next element.
        next: usize,
    },
}

impl<'a> Walk<'a, '_> {
    /// The text is known to be JSON.
    fn run(mut self, mut scanner: Scanner<'a>) -> Result<(), NotJson> {
        self.enter(&mut scanner)?;
        while let Some(level) = self.levels.last_mut() {
            let goes_on = match level {
                Level::Object {
                    open,
                    first_key,
                    key,
                } => match scanner.next_key(open)? {
                    Some(next) => {
                        *key = next;
                        match unescape(next) {
                            Some(text) if text == RAW_VALUE => self.note_reserved_key(),
                            Some(text) => self.keys.push(text),
                            None => self.note_key_that_is_not_unicode(),
                        }
                        true
                    }
                    None => {
                        let first_key = *first_key;
                        self.levels.pop();
                        self.compare_keys(first_key);
                        false
                    }
                },
                Level::Array { open, next } => {
                    *next += 1;
                    let goes_on = scanner.has_next(open)?;
                    if !goes_on {
                        self.levels.pop();
                    }
                    goes_on
                }
            };
            if goes_on {
                self.enter(&mut scanner)?;
            }
        }
        Ok(())
    }

    /// Steps into an object or an array, or over anything else.
    fn enter(&mut self, scanner: &mut Scanner<'a>) -> Result<(), NotJson> {
        match scanner.peek() {
            Some(b'{') => self.levels.push(Level::Object {
                open: scanner.enter(),
                first_key: self.keys.len(),
                key: "",
            }),
            Some(b'[') => self.levels.push(Level::Array {
                open: scanner.enter(),
                next: 0,
            }),
            _ => _ = scanner.value()?,
        }
        Ok(())
    }

    /// Sorting brings equal keys together without a hash table, whose worst case a sender could provoke.
    fn compare_keys(&mut self, first_key: usize) {
        let keys = &mut self.keys[first_key..];
        keys.sort_unstable_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
        for same in keys.chunk_by(|a, b| a == b).filter(|same| same.len() > 1) {
            let key = &same[0];
            self.problems.note(|| {
                let message = format!("The key {} appears more than once", Excerpt(key));
                let pointer = pointer(self.path, self.levels, Some(key));
                ErrorObject::new(ErrorCode::InvalidRequest, message).at(pointer)
            });
        }
        self.keys.truncate(first_key);
    }

    fn note_reserved_key(&mut self) {
        self.problems.note(|| {
            let message = format!("The key {} is reserved", Excerpt(RAW_VALUE));
            let pointer = pointer(self.path, self.levels, None);
            ErrorObject::new(ErrorCode::InvalidRequest, message).at(pointer)
        });
    }

    /// Some parsers replace the invalid part of such a key, so that different keys become equal; some fail; some keep them apart.
    fn note_key_that_is_not_unicode(&mut self) {
        let around = self
            .levels
            .split_last()
            .map_or(&[][..], |(_, around)| around);
        self.problems.note(|| {
            let message =
                "A key has an escape that is half of a surrogate pair, which is not Unicode";
            let pointer = pointer(self.path, around, None);
            ErrorObject::new(ErrorCode::InvalidRequest, message).at(pointer)
        });
    }
}

/// The pointer to a key of the innermost open object, or the longest part of it that is within the limit.
fn pointer(path: Path<'_>, levels: &[Level<'_>], key: Option<&str>) -> Pointer {
    let mut pointer = path.to_pointer();
    let steps = levels.iter().map(|level| match level {
        Level::Object { key, .. } => Step::Key(unescape(key).unwrap_or_default()),
        Level::Array { next, .. } => Step::Index(next.saturating_sub(1)),
    });
    for step in steps.chain(key.map(|key| Step::Key(key.into()))) {
        let longer = match step {
            Step::Key(key) => pointer.key_within_limit(&key),
            Step::Index(index) => Some(pointer.clone().index(index)),
        };
        match longer {
            Some(longer) => pointer = longer,
            None => break,
        }
    }
    pointer
}

enum Step<'a> {
    Key(Cow<'a, str>),
    Index(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointers(object: &str) -> Vec<String> {
        let mut problems = Problems::default();
        RepeatedKeys::default().note(object, Path::Root, &mut problems);
        let errors = problems.into_errors().into_iter().flatten();
        errors
            .map(|error| match error.source {
                Some(crate::Source::Pointer(pointer)) => pointer.to_string(),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn keys_are_compared_with_those_of_their_own_object_only() {
        for object in [
            "{}",
            r#"{"a": 1}"#,
            r#"{"a": "a", "b": "a", "c": ["a", "a"]}"#,
            r#"{"a": {"a": {"a": {}}}, "b": [{"a": 1}, {"a": 1}]}"#,
            r#"{"a": {"b": 1}, "b": {"a": 1}}"#,
            r#"{"a": 1, "A": 2, "": 3, " ": 4}"#,
        ] {
            assert!(pointers(object).is_empty(), "{object}");
        }
    }

    #[test]
    fn each_repeated_key_is_noted_once_with_its_pointer() {
        assert_eq!(pointers(r#"{"a": 1, "a": 2, "a": 3}"#), ["/a"]);
        assert_eq!(pointers(r#"{"": 1, "": 2}"#), ["/"]);
        assert_eq!(
            pointers(
                r#"{"x": [1, [], {"~": {"b": 0, "b": 0}}], "y": {"c": {}, "c": [{}]}, "x": 0}"#
            ),
            ["/x/2/~0/b", "/y/c", "/x"]
        );
    }

    #[test]
    fn keys_behind_a_repeated_one_are_still_compared() {
        assert_eq!(
            pointers(r#"{"a": {"b": 1, "b": 2}, "c": 1, "c": 2}"#),
            ["/a/b", "/c"]
        );
    }

    #[test]
    fn a_key_that_makes_a_parser_replace_its_object_is_noted() {
        for key in [RAW_VALUE, r"\u0024serde_json::private::RawValue"] {
            let object = format!(r#"{{"a": [{{"{key}": "{{\"x\": 1, \"x\": 2}}"}}]}}"#);
            assert_eq!(pointers(&object), [format!("/a/0/{RAW_VALUE}")]);
        }
        assert!(pointers(&format!(r#"{{"a": "{RAW_VALUE}", "{RAW_VALUE}s": 1}}"#)).is_empty());
    }

    #[test]
    fn a_pointer_that_would_be_too_long_ends_at_the_last_key_that_fits() {
        let long = "k".repeat(300);
        let object = format!(r#"{{"{long}": {{"{long}": {{"a": 1, "a": 2}}}}}}"#);
        assert_eq!(pointers(&object), [format!("/{long}")]);
        let slashes = "/".repeat(300);
        let object = format!(r#"{{"{slashes}": 1, "{slashes}": 2}}"#);
        assert_eq!(pointers(&object), [""]);
    }
}
