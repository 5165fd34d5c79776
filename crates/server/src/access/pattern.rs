//! Patterns of names, in which `*` matches any run of characters.

/// A pattern that must match the whole name. `*` matches any characters, or none; every other character matches itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern(String);

impl Pattern {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The prefix of every name that matches.
    pub(super) fn literal_prefix(&self) -> &str {
        self.0.split('*').next().unwrap_or_default()
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        let Some((first, rest)) = self.0.split_once('*') else {
            return self.0 == name;
        };
        let Some(mut name) = name.strip_prefix(first) else {
            return false;
        };
        let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        // The earliest match of each part leaves the most for the parts after it.
        for part in middle.split('*') {
            let Some(at) = name.find(part) else {
                return false;
            };
            name = &name[at + part.len()..];
        }
        name.ends_with(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_matches_anything_and_every_other_character_itself() {
        for (pattern, name, expected) in [
            ("billing.*", "billing.run", true),
            ("billing.*", "billing.", true),
            ("billing.*", "billing", false),
            ("billing.*", "xbilling.run", false),
            ("billing.run", "billing.run", true),
            ("billing.run", "billing.runs", false),
            ("billing.run", "billingxrun", false),
            ("*", "", true),
            ("*", "anything", true),
            ("**", "anything", true),
            ("lock:*:invoice", "lock:a:b:invoice", true),
            ("lock:*:invoice", "lock::invoice", true),
            ("lock:*:invoice", "lock:invoice", false),
            ("lock:*:invoice", "lock:a:invoices", false),
            ("a*b*c", "abc", true),
            ("a*b*c", "axxbxbxc", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("a*aa*a", "aaa", false),
            ("a*aa*a", "aaaa", true),
            ("*é*", "café!", true),
            ("[a-z]?", "b1", false),
        ] {
            let matches = Pattern::new(pattern).matches(name);
            assert_eq!(matches, expected, "{pattern} on {name}");
        }
    }

    #[test]
    fn the_literal_prefix_ends_at_the_first_star() {
        assert_eq!(Pattern::new("lock:a:*").literal_prefix(), "lock:a:");
        assert_eq!(Pattern::new("lock:*:b*").literal_prefix(), "lock:");
        assert_eq!(Pattern::new("lock:a").literal_prefix(), "lock:a");
    }
}
