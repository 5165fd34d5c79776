//! What the logs have of a text that a caller made.

use std::borrow::Cow;

/// Longer than any name, path or id that is meant well.
const MOST: usize = 256;

/// The text, or its first 256 bytes: what callers send must not fill a log. Messages have [`forrst_protocol::excerpt`].
pub(crate) fn for_log(text: &str) -> Cow<'_, str> {
    match text.len() {
        ..=MOST => text.into(),
        _ => format!("{}…", &text[..text.floor_char_boundary(MOST)]).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let short = "x".repeat(MOST);
        assert_eq!(for_log(&short), short);
        assert_eq!(for_log(&"x".repeat(MOST + 1)), format!("{short}…"));
        let wide = format!("x{}", "é".repeat(MOST));
        assert_eq!(for_log(&wide), format!("x{}…", "é".repeat(127)));
    }
}
