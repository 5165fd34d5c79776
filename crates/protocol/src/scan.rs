//! Finds the parts of a JSON text, in one pass that converts nothing.
//!
//! Most of a request is passed on as it is, so this is how most of it is read. The scanner accepts exactly what `serde_json`
//! accepts (the tests compare the two on whole, damaged and random texts), says nothing about what is wrong with other texts, and
//! does not recurse. It also watches for keys that may be repeated.

use std::borrow::Cow;

use smallvec::SmallVec;

/// The text is not JSON. `serde_json` says where and why.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotJson;

type Scanned<T> = Result<T, NotJson>;

/// A position in a text.
pub(crate) struct Scanner<'a> {
    text: &'a str,
    position: usize,
    /// Whether each level that is open within the value is an object. One byte each: a hostile text has a million levels.
    levels: SmallVec<[bool; 16]>,
    /// The index of the first key of each outer level.
    first_keys: SmallVec<[usize; 16]>,
    /// The keys of the open outer levels, those of the innermost last.
    keys: SmallVec<[&'a str; 8]>,
    has_unusual_keys: bool,
}

/// An object or array that was entered.
#[derive(Clone, Copy)]
pub(crate) struct Open {
    is_object: bool,
    is_first: bool,
}

/// An object with more keys is searched for repeated ones separately: comparing each with all before it would take too long.
const MAX_COMPARED: usize = 16;
/// So are objects that are nested deeper.
const MAX_COMPARED_LEVELS: usize = crate::MAX_NESTING;

impl<'a> Scanner<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self {
            text,
            position: 0,
            levels: SmallVec::new(),
            first_keys: SmallVec::new(),
            keys: SmallVec::new(),
            has_unusual_keys: false,
        }
    }

    /// Whether an object within a scanned value may have a repeated key, or one that another parser may read differently.
    pub(crate) fn has_unusual_keys(&self) -> bool {
        self.has_unusual_keys
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.position).copied()
    }

    /// The first byte of what comes next.
    pub(crate) fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.byte() {
            self.position += 1;
        }
        self.byte()
    }

    /// Steps into the object or array that comes next.
    pub(crate) fn enter(&mut self) -> Open {
        let is_object = self.peek() == Some(b'{');
        self.position += 1;
        Open {
            is_object,
            is_first: true,
        }
    }

    /// The key of the next member of an object that was entered, with its quotes. `None` behind the end of the object.
    pub(crate) fn next_key(&mut self, object: &mut Open) -> Scanned<Option<&'a str>> {
        if !self.has_next(object)? {
            return Ok(None);
        }
        if self.byte() != Some(b'"') {
            return Err(NotJson);
        }
        let key = self.string()?;
        self.expect(b':')?;
        Ok(Some(key))
    }

    /// Whether an object or array that was entered has another element. If not, its end is skipped.
    pub(crate) fn has_next(&mut self, open: &mut Open) -> Scanned<bool> {
        let end = if open.is_object { b'}' } else { b']' };
        let is_first = std::mem::take(&mut open.is_first);
        if self.peek() == Some(end) {
            self.position += 1;
            return Ok(false);
        }
        if !is_first {
            self.expect(b',')?;
            // Another element has to follow: after a comma, the end is not JSON.
            self.peek();
        }
        Ok(true)
    }

    /// Steps over a value of any kind, and gives its text without space around it.
    pub(crate) fn value(&mut self) -> Scanned<&'a str> {
        let first = self.peek();
        let start = self.position;
        let mut is_first = self.begin(first)?;
        while let Some(&is_object) = self.levels.last() {
            let mut open = Open {
                is_object,
                is_first,
            };
            let goes_on = if is_object {
                let key = self.next_key(&mut open)?;
                key.map(|key| self.note_key(key)).is_some()
            } else {
                self.has_next(&mut open)?
            };
            is_first = false;
            if goes_on {
                let first = self.peek();
                is_first = self.begin(first)?;
            } else {
                self.leave();
            }
        }
        Ok(self.since(start))
    }

    /// Steps out of the innermost level, which has ended.
    fn leave(&mut self) {
        if self.levels.len() == self.first_keys.len()
            && let Some(first_key) = self.first_keys.pop()
        {
            self.keys.truncate(first_key);
        }
        self.levels.pop();
    }

    /// Succeeds if nothing but white space is left.
    pub(crate) fn end(&mut self) -> Scanned<()> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(NotJson),
        }
    }

    /// Steps over a scalar, or into anything else. Whether it has stepped into something.
    fn begin(&mut self, first: Option<u8>) -> Scanned<bool> {
        match first {
            Some(b'"') => self.string().map(drop)?,
            Some(b'{' | b'[') => {
                self.position += 1;
                if self.levels.len() < MAX_COMPARED_LEVELS {
                    self.first_keys.push(self.keys.len());
                }
                self.levels.push(first == Some(b'{'));
                return Ok(true);
            }
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b't') => self.word("true")?,
            Some(b'f') => self.word("false")?,
            Some(b'n') => self.word("null")?,
            _ => return Err(NotJson),
        }
        Ok(false)
    }

    fn note_key(&mut self, key: &'a str) {
        let first_key = match self.first_keys.last() {
            Some(first_key) if self.first_keys.len() == self.levels.len() => *first_key,
            _ => {
                self.has_unusual_keys = true;
                return;
            }
        };
        let siblings = &self.keys[first_key..];
        // One key that means something to `serde_json` starts with a dollar sign.
        if plain_prefix(&key.as_bytes()[1..]) + 2 < key.len()
            || key.starts_with("\"$")
            || siblings.len() > MAX_COMPARED
            || siblings.contains(&key)
        {
            self.has_unusual_keys = true;
        } else {
            self.keys.push(key);
        }
    }

    fn expect(&mut self, wanted: u8) -> Scanned<()> {
        if self.peek() != Some(wanted) {
            return Err(NotJson);
        }
        self.position += 1;
        Ok(())
    }

    fn word(&mut self, word: &str) -> Scanned<()> {
        let rest = self.text.as_bytes().get(self.position..);
        if !rest.is_some_and(|rest| rest.starts_with(word.as_bytes())) {
            return Err(NotJson);
        }
        self.position += word.len();
        Ok(())
    }

    fn number(&mut self) -> Scanned<()> {
        self.position += usize::from(self.byte() == Some(b'-'));
        if self.byte() == Some(b'0') {
            self.position += 1;
        } else {
            self.digits()?;
        }
        if self.byte() == Some(b'.') {
            self.position += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.byte() {
            self.position += 1;
            self.position += usize::from(matches!(self.byte(), Some(b'+' | b'-')));
            self.digits()?;
        }
        Ok(())
    }

    /// At least one.
    fn digits(&mut self) -> Scanned<()> {
        let start = self.position;
        while let Some(b'0'..=b'9') = self.byte() {
            self.position += 1;
        }
        if self.position == start {
            return Err(NotJson);
        }
        Ok(())
    }

    /// A string with its quotes, from the opening one on.
    fn string(&mut self) -> Scanned<&'a str> {
        let start = self.position;
        self.position += 1;
        loop {
            let rest = self.text.as_bytes().get(self.position..);
            let rest = rest.unwrap_or_default();
            let plain = plain_prefix(rest);
            self.position += plain + 1;
            match rest.get(plain) {
                Some(b'"') => return Ok(self.since(start)),
                Some(b'\\') => self.escape()?,
                _ => return Err(NotJson),
            }
        }
    }

    /// What follows a backslash.
    fn escape(&mut self) -> Scanned<()> {
        let letter = self.byte();
        self.position += 1;
        match letter {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Ok(()),
            Some(b'u') => {
                let end = self.position + 4;
                let digits = self.text.as_bytes().get(self.position..end);
                self.position = end;
                match digits {
                    Some(digits) if digits.iter().all(u8::is_ascii_hexdigit) => Ok(()),
                    _ => Err(NotJson),
                }
            }
            _ => Err(NotJson),
        }
    }

    fn since(&self, start: usize) -> &'a str {
        self.text.get(start..self.position).unwrap_or_default()
    }
}

/// How many bytes precede the first quote, backslash or control character.
fn plain_prefix(bytes: &[u8]) -> usize {
    const EACH: u64 = u64::from_ne_bytes([1; 8]);
    let (words, _) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        // Sets the highest bit of each byte that is zero. Bytes above the first of them may be wrong, and are ignored.
        let zeros = |word: u64| word.wrapping_sub(EACH) & !word;
        let control = word.wrapping_sub(EACH * 0x20) & !word;
        let quote = zeros(word ^ (EACH * u64::from(b'"')));
        let backslash = zeros(word ^ (EACH * u64::from(b'\\')));
        let special = (control | quote | backslash) & (EACH * 0x80);
        if special != 0 {
            return index * 8 + (special.trailing_zeros() / 8) as usize;
        }
    }
    let rest = bytes.len() / 8 * 8;
    let is_special = |byte: &u8| *byte < b' ' || *byte == b'"' || *byte == b'\\';
    let found = bytes[rest..].iter().position(is_special);
    found.map_or(bytes.len(), |found| rest + found)
}

/// The text that a JSON string stands for. `None` where an escape in it is half of a surrogate pair, which JSON allows and
/// Unicode does not.
pub(crate) fn unescape(quoted: &str) -> Option<Cow<'_, str>> {
    let text = quoted.get(1..quoted.len() - 1)?;
    if plain_prefix(text.as_bytes()) < text.len() {
        serde_json::from_str(quoted).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(text))
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;

    use proptest::prelude::*;
    use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
    use serde_json::value::RawValue;

    use super::*;

    fn members(text: &str) -> Scanned<Vec<(&str, &str)>> {
        let mut scanner = Scanner::new(text);
        let mut object = scanner.enter();
        let mut members = Vec::new();
        while let Some(key) = scanner.next_key(&mut object)? {
            members.push((key, scanner.value()?));
        }
        scanner.end()?;
        Ok(members)
    }

    fn has_unusual_keys(text: &str) -> bool {
        let mut scanner = Scanner::new(text);
        scanner.value().unwrap();
        scanner.has_unusual_keys()
    }

    fn is_json(text: &str) -> bool {
        let mut scanner = Scanner::new(text);
        scanner.value().and_then(|_| scanner.end()).is_ok()
    }

    fn is_json_by_serde(text: &str) -> bool {
        serde_json::from_str::<IgnoredAny>(text).is_ok()
    }

    #[test]
    fn members_are_found_with_and_without_space() {
        let expected = [
            ("\"a\"", "[1, {\"}\": []}]"),
            ("\"\\\"\"", "-1e999"),
            ("\"c\"", "\"\\\\\""),
            ("\"\"", "null"),
        ];
        let text = r#" { "a" : [1, {"}": []}] , "\"":-1e999 ,"c": "\\" , "":null } "#;
        assert_eq!(members(text).unwrap(), expected);
        assert_eq!(members(" { } ").unwrap(), []);
    }

    #[test]
    fn elements_are_found_and_the_scanner_stands_behind_the_array() {
        let mut scanner = Scanner::new(" [ 1 ,\"]\",[ [] ],{} ] ,true");
        let mut array = scanner.enter();
        let mut elements = Vec::new();
        while scanner.has_next(&mut array).unwrap() {
            elements.push(scanner.value().unwrap());
        }
        assert_eq!(elements, ["1", "\"]\"", "[ [] ]", "{}"]);
        scanner.expect(b',').unwrap();
        assert_eq!(scanner.value(), Ok("true"));
    }

    #[test]
    fn repeated_and_escaped_keys_are_unusual_at_any_depth() {
        for text in [
            r#"{"a": 1, "b": 2, "a": 3}"#,
            r#"{"x": [{"a": 1, "b": {"a": 1}, "b": 2}]}"#,
            r#"[{"\u0061": 1}]"#,
        ] {
            assert!(has_unusual_keys(text), "{text}");
        }
        for text in [
            r#"{"a": {"a": {"a": {}}}, "b": [{"a": 1}, {"a": 1}], "c": "a"}"#,
            r#"[["a", "a"], {"a": "\\"}]"#,
        ] {
            assert!(!has_unusual_keys(text), "{text}");
        }
        let deep = format!("{}{{\"a\":0}}{}", "[".repeat(100), "]".repeat(100));
        assert!(has_unusual_keys(&deep));
        let many: Vec<String> = (0..100).map(|key| format!("\"{key}\":0")).collect();
        assert!(has_unusual_keys(&format!("{{{}}}", many.join(","))));
    }

    /// What `serde_json` takes for the members of an object.
    fn members_by_serde(text: &str) -> Vec<(&str, &str)> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Vec<(&'de str, &'de str)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((key, value)) = map.next_entry::<&RawValue, &RawValue>()? {
                    members.push((key.get(), value.get()));
                }
                Ok(members)
            }
        }
        let mut json = serde_json::Deserializer::from_str(text);
        json.deserialize_map(Members).unwrap()
    }

    fn json() -> impl Strategy<Value = String> {
        const WORDS: [&str; 10] = [
            "null",
            "true",
            "-0",
            "1.5e-7",
            "1e999",
            r#""""#,
            r#""\ud800""#,
            r#""}\",{[""#,
            r#""\\""#,
            r#""é\u0041""#,
        ];
        let leaf = prop::sample::select(&WORDS[..]).prop_map(str::to_owned);
        let space = || prop::sample::select(&["", "", " ", "\n\t\r "][..]);
        leaf.prop_recursive(4, 32, 4, move |inner| {
            let element =
                (space(), inner.clone(), space()).prop_map(|(a, it, b)| format!("{a}{it}{b}"));
            let key = prop::sample::select(&[r#""a""#, r#""\"""#, r#""{\\""#, r#""\ud800""#][..]);
            let member = (key, space(), element.clone())
                .prop_map(|(key, a, it)| format!("{a}{key}{a}:{it}"));
            prop_oneof![
                prop::collection::vec(element, 0..4).prop_map(|all| format!("[{}]", all.join(","))),
                prop::collection::vec(member, 0..4)
                    .prop_map(|all| format!("{{{}}}", all.join(","))),
            ]
        })
    }

    /// A text with one of its bytes left out, doubled or replaced by another that means something.
    fn damaged(text: &str, at: usize, with: &str) -> String {
        let mut damaged: Vec<char> = text.chars().collect();
        let at = at % damaged.len();
        damaged.splice(at..=at, with.chars());
        damaged.into_iter().collect()
    }

    proptest! {
        #[test]
        fn the_members_of_an_object_are_those_that_serde_json_finds(value in json(), other in json()) {
            let text = format!(" {{ \"x\":{value},\"y\" : {other} }}");
            prop_assert_eq!(members(&text).unwrap(), members_by_serde(&text));
            if value.starts_with('{') {
                prop_assert_eq!(members(&value).unwrap(), members_by_serde(&value));
            }
        }

        #[test]
        fn a_damaged_text_is_json_where_serde_json_says_so(
            value in json(),
            at in any::<usize>(),
            with in prop::sample::select(&[
                "", ",", ",,", ":", "\"", "\\", "\\u12g4", "{", "}", "[", "]", "0", "00", "1", "-", ".", "e+", "E", " ",
                "\n", "\u{0}", "\u{1f}", "\u{7f}", "\u{a0}", "true", "nul", "é",
            ][..]),
        ) {
            let text = damaged(&value, at, with);
            prop_assert_eq!(is_json(&text), is_json_by_serde(&text), "{}", text);
        }

        #[test]
        fn the_plain_prefix_ends_at_the_first_special_byte(bytes in "[a-c\"\\\\\u{1f}\u{7f}é\u{10ffff}]{0,40}") {
            let is_special = |byte: u8| byte < b' ' || byte == b'"' || byte == b'\\';
            let expected = bytes.bytes().position(is_special).unwrap_or(bytes.len());
            prop_assert_eq!(plain_prefix(bytes.as_bytes()), expected);
        }

        #[test]
        fn any_text_is_json_where_serde_json_says_so(text in r#"[\[\]{}:,"\\ 0-2.eE+\-untrls]{0,12}"#) {
            prop_assert_eq!(is_json(&text), is_json_by_serde(&text), "{}", text);
        }
    }

    #[test]
    fn strings_are_unescaped_unless_they_are_not_unicode() {
        assert!(matches!(
            unescape(r#""plain é""#),
            Some(Cow::Borrowed("plain é"))
        ));
        assert_eq!(unescape(r#""""#).unwrap(), "");
        assert_eq!(unescape(r#""\u0069d""#).unwrap(), "id");
        assert_eq!(unescape(r#""\ud83d\ude00\n""#).unwrap(), "😀\n");
        assert_eq!(unescape(r#""\ud83d""#), None);
        assert_eq!(unescape(r#""\ude00 \ud83d""#), None);
    }
}
