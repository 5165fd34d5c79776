//! How the parts of a JSON text lie inside each other.
//!
//! This is no parser: it believes that the text is JSON, and only looks at brackets, commas and strings; of any other text
//! it says something meaningless. That is why it needs no recursion, and does not stumble over numbers and escapes that
//! cannot be represented, as a visitor would, and stop before the repeated key that stands behind.

pub(super) enum Token<'a> {
    /// With its position, as the next.
    OpenObject(usize),
    OpenArray(usize),
    Close,
    Comma,
    /// With its quotes.
    Text(&'a str),
}

pub(super) struct Tokens<'a> {
    text: &'a str,
    position: usize,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let bytes = self.text.as_bytes();
        loop {
            let position = self.position;
            self.position += 1;
            return Some(match bytes.get(position)? {
                b'{' => Token::OpenObject(position),
                b'[' => Token::OpenArray(position),
                b'}' | b']' => Token::Close,
                b',' => Token::Comma,
                b'"' => {
                    self.skip_string();
                    Token::Text(self.text.get(position..self.position)?)
                }
                _ => continue,
            });
        }
    }
}

impl<'a> Tokens<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        Self { text, position: 0 }
    }

    /// Goes behind the closing quote, from behind the opening one.
    fn skip_string(&mut self) {
        let bytes = self.text.as_bytes();
        while let Some(byte) = bytes.get(self.position) {
            match byte {
                b'"' => {
                    self.position += 1;
                    return;
                }
                b'\\' => self.position += 2,
                _ => self.position += 1,
            }
        }
    }
}

/// The position of the first bracket that opens deeper than `limit`.
pub(super) fn first_bracket_deeper_than(limit: usize, text: &str) -> Option<usize> {
    // Too few brackets cannot nest too deep, which nearly always spares the walk.
    if count_of_opening_brackets(text.as_bytes()) <= limit {
        return None;
    }
    let mut depth: usize = 0;
    for token in Tokens::of(text) {
        match token {
            Token::OpenObject(position) | Token::OpenArray(position) => {
                if depth == limit {
                    return Some(position);
                }
                depth += 1;
            }
            Token::Close => depth = depth.saturating_sub(1),
            Token::Comma | Token::Text(_) => {}
        }
    }
    None
}

/// In short runs, each counted in a byte, so that the compiler makes vector instructions of it.
fn count_of_opening_brackets(bytes: &[u8]) -> usize {
    let count = |run: &[u8]| -> u8 { run.iter().map(|byte| u8::from(byte | 0x20 == b'{')).sum() };
    bytes.chunks(255).map(|run| usize::from(count(run))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_brackets_outside_strings_nest() {
        let text = r#"{"[[": ["{{", "\"[", "\\", {"a": []}]}"#;
        assert_eq!(first_bracket_deeper_than(4, text), None);
        assert_eq!(first_bracket_deeper_than(3, text), text.find("[]"));
        assert_eq!(first_bracket_deeper_than(2, text), text.find("{\"a"));
        assert_eq!(first_bracket_deeper_than(0, text), Some(0));
    }

    #[test]
    fn brackets_that_are_closed_do_not_nest() {
        assert_eq!(first_bracket_deeper_than(2, "[[],[],{},{}]"), None);
    }

    #[test]
    fn any_text_at_all_comes_to_an_end() {
        for text in ["\"", "\"\\", "]]]][[[[[", "}}\"é", "\\"] {
            first_bracket_deeper_than(0, text);
            assert!(Tokens::of(text).count() <= text.len());
        }
    }

    #[test]
    fn brackets_are_counted_over_many_runs() {
        assert_eq!(count_of_opening_brackets(&[b'{'; 1000]), 1000);
        assert_eq!(count_of_opening_brackets(&[b'['; 255]), 255);
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(count_of_opening_brackets(&all), 2);
    }
}
