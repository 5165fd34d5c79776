//! Collects everything that is wrong with a request while it is read. The list is bounded, and so is what a message repeats of the
//! request: a bad request must not cause an answer many times its size.

use std::borrow::Cow;
use std::fmt::{self, Write};

use crate::{ErrorCode, ErrorObject, Errors};

/// The most errors an answer lists: a body full of errors must not cause an answer many times its size.
pub const MAX_PROBLEMS: usize = 64;

/// The most bytes of a caller's text that a message repeats, for the same reason.
const MAX_EXCERPT: usize = 128;

/// The most bytes of a message that another crate wrote, such as a parser's.
const MAX_MESSAGE: usize = 512;

/// The problems with one request: those that fit into an answer, and how many more there are.
#[derive(Debug)]
pub struct Problems {
    listed: Vec<ErrorObject>,
    unlisted: usize,
    most: usize,
}

impl Default for Problems {
    fn default() -> Self {
        Self::at_most(MAX_PROBLEMS)
    }
}

impl Problems {
    /// Lists at most that many, and at least one.
    pub fn at_most(most: usize) -> Self {
        Self {
            listed: Vec::new(),
            unlisted: 0,
            most: most.max(1),
        }
    }

    /// Keeps a problem, or only counts it when the list is full: then its message is not formatted.
    pub fn note(&mut self, problem: impl FnOnce() -> ErrorObject) {
        if self.listed.len() < self.most {
            self.listed.push(problem());
        } else {
            self.unlisted += 1;
        }
    }

    /// Counts further problems without listing them.
    pub fn note_unlisted(&mut self, count: usize) {
        self.unlisted += count;
    }

    /// Whether nothing was wrong.
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty() && self.unlisted == 0
    }

    /// The errors of the answer, if there are any; the last one says how many were left out.
    pub fn into_errors(mut self) -> Option<Errors> {
        const UNLISTED: &str = "unlisted";
        let more = |unlisted: usize| {
            let message = format!("{unlisted} more problems are not listed");
            ErrorObject::new(ErrorCode::InvalidRequest, message).with_detail(UNLISTED, unlisted)
        };
        if self.unlisted > 0 {
            if self.most == 1
                && let Some(only) = self.listed.pop()
            {
                self.listed.push(only.with_detail(UNLISTED, self.unlisted));
            } else {
                if self.listed.len() == self.most {
                    self.listed.pop();
                    self.unlisted += 1;
                }
                self.listed.push(more(self.unlisted));
            }
        }
        Errors::try_from(self.listed).ok()
    }
}

impl Extend<ErrorObject> for Problems {
    fn extend<T: IntoIterator<Item = ErrorObject>>(&mut self, problems: T) {
        for problem in problems {
            self.note(|| problem);
        }
    }
}

/// The beginning of a text, quoted and escaped.
pub(crate) struct Excerpt<'a>(pub(crate) &'a str);

impl fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = MAX_EXCERPT;
        f.write_char('"')?;
        for char in self.0.chars() {
            let escaped = char.escape_debug();
            let length: usize = escaped.clone().map(char::len_utf8).sum();
            match left.checked_sub(length) {
                Some(rest) => left = rest,
                None => return f.write_str("\"…"),
            }
            write!(f, "{escaped}")?;
        }
        f.write_char('"')
    }
}

/// The beginning of a caller's text, 128 bytes at most, for a message that repeats it.
pub fn excerpt(text: &str) -> Cow<'_, str> {
    cut(text, MAX_EXCERPT)
}

/// The beginning of a message of another crate, which may repeat what a caller sent: 512 bytes at most, and no more than that
/// is ever formatted.
pub fn short_message(message: impl fmt::Display) -> String {
    struct Start(String);
    impl Write for Start {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let cut = cut(text, MAX_MESSAGE - self.0.len().min(MAX_MESSAGE));
            self.0.push_str(&cut);
            match cut {
                Cow::Borrowed(_) => Ok(()),
                Cow::Owned(_) => Err(fmt::Error),
            }
        }
    }
    let mut start = Start(String::new());
    // An error says that it was cut.
    let _ = write!(start, "{message}");
    start.0
}

fn cut(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let end = text.floor_char_boundary(most);
    Cow::Owned(format!("{}…", &text[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(count: usize) -> Vec<ErrorObject> {
        let mut problems = Problems::default();
        for index in 0..count {
            let pointer = crate::Pointer::root().index(index);
            problems.note(|| ErrorObject::new(ErrorCode::InvalidRequest, "bad").at(pointer));
        }
        problems
            .into_errors()
            .map_or(Vec::new(), |errors| errors.into_iter().collect())
    }

    #[test]
    fn no_problems_are_no_errors() {
        assert!(with(0).is_empty());
    }

    #[test]
    fn up_to_64_problems_are_all_listed() {
        let errors = with(64);
        assert_eq!(errors.len(), 64);
        assert!(errors.iter().all(|error| error.source.is_some()));
    }

    #[test]
    fn beyond_64_problems_the_last_says_how_many_are_not_listed() {
        let errors = with(100);
        assert_eq!(errors.len(), 64);
        assert_eq!(errors[63].message, "37 more problems are not listed");
        assert_eq!(errors[63].details.as_ref().unwrap()["unlisted"], 37);
    }

    #[test]
    fn a_long_text_is_repeated_only_in_part() {
        assert_eq!(Excerpt("a\"b").to_string(), r#""a\"b""#);
        let long = Excerpt(&"é".repeat(1000)).to_string();
        assert_eq!(long, format!("\"{}\"…", "é".repeat(64)));
        let escaped = Excerpt(&"\u{1}".repeat(1000)).to_string();
        assert!(escaped.len() <= MAX_EXCERPT + 5, "{escaped}");
    }

    #[test]
    fn messages_and_names_are_cut_between_characters() {
        assert_eq!(excerpt("name"), "name");
        assert_eq!(excerpt(&"é".repeat(1000)), format!("{}…", "é".repeat(64)));
        assert_eq!(short_message("short"), "short");
        let long = format!("x{}", "é".repeat(1000));
        assert_eq!(short_message(&long), format!("x{}…", "é".repeat(255)));
        let parts = format_args!("{}{}", "a".repeat(512), "b").to_string();
        assert_eq!(short_message(parts), format!("{}…", "a".repeat(512)));
    }

    #[test]
    fn where_only_one_is_listed_it_says_how_many_are_not() {
        let mut problems = Problems::at_most(1);
        for _ in 0..5 {
            problems.note(|| ErrorObject::new(ErrorCode::InvalidArguments, "bad"));
        }
        let errors = problems.into_errors().unwrap();
        assert_eq!(errors.as_slice().len(), 1);
        assert_eq!(errors.as_slice()[0].message, "bad");
        assert_eq!(
            errors.as_slice()[0].details.as_ref().unwrap()["unlisted"],
            4
        );
    }
}
