//! How deep the objects and arrays of a JSON text are nested, found before anything else is read, so that a hostile text costs no
//! memory for its levels.

/// The position of the first bracket that opens deeper than `limit`.
pub(super) fn first_bracket_deeper_than(limit: usize, text: &str) -> Option<usize> {
    // Few brackets cannot nest too deep: this nearly always saves the full scan.
    if count_of_opening_brackets(text.as_bytes()) <= limit {
        return None;
    }
    let mut depth: usize = 0;
    let (mut is_in_string, mut is_escaped) = (false, false);
    for (position, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_in_string,
            b'"' => is_in_string = !is_in_string,
            _ if is_in_string => {}
            b'{' | b'[' if depth == limit => return Some(position),
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// Counts in runs that fit into one byte, so that the compiler vectorises it.
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
    fn any_text_is_scanned_to_its_end() {
        for text in ["\"", "\"\\", "]]]][[[[[", "}}\"é", "\\"] {
            first_bracket_deeper_than(0, text);
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
