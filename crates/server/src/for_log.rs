//! Shortens texts from callers for the logs.

use std::borrow::Cow;

/// Longer than any legitimate name, path or id.
const MOST: usize = 256;

/// The text, or its first 256 bytes, so that callers cannot fill a log. Error messages use [`forrst_protocol::excerpt`].
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
