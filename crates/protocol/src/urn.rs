//! Uniform resource names, by which requests name extensions. They are compared byte by byte.

use smol_str::SmolStr;

use crate::names::{InvalidName, check_length, name};

/// A uniform resource name in the sense of RFC 8141, such as `urn:forrst:ext:atomicLock`, of at most 255 bytes.
///
/// Compared byte by byte. By RFC 8141, `URN:` and `urn:` would be equivalent, and an answer could echo another spelling than the
/// request used.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Urn(SmolStr);

name!(Urn);

impl Urn {
    const MAX_BYTES: usize = 255;
    const WHAT: &'static str = "a URN";

    fn check(text: &str) -> Result<(), InvalidName> {
        check_length(text, Self::WHAT, Self::MAX_BYTES)?;
        if is_urn(text) {
            Ok(())
        } else {
            Err(InvalidName::Malformed {
                what: Self::WHAT,
                form: "of the form `urn:<namespace>:<name>`, such as `urn:forrst:ext:atomicLock`",
            })
        }
    }
}

/// `urn:` in any case, a namespace, and a specific string of the characters that RFC 3986 allows in paths.
fn is_urn(text: &str) -> bool {
    let mut parts = text.splitn(3, ':');
    let (Some(scheme), Some(namespace), Some(specific)) =
        (parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    scheme.eq_ignore_ascii_case("urn") && is_namespace(namespace) && is_specific(specific)
}

fn is_namespace(text: &str) -> bool {
    let bytes = text.as_bytes();
    (2..=32).contains(&bytes.len())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
        && bytes.first() != Some(&b'-')
        && bytes.last() != Some(&b'-')
}

fn is_specific(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('/')
        && text.bytes().all(|byte| {
            matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9')
                || matches!(
                    byte,
                    b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')'
                )
                || matches!(
                    byte,
                    b'*' | b'+' | b',' | b';' | b'=' | b':' | b'@' | b'/' | b'%' | b'?' | b'#'
                )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extension_urns_of_both_spellings_are_urns() {
        for text in [
            "urn:forrst:ext:atomicLock",
            "urn:cline:forrst:ext:atomic-lock",
            "urn:forrst:ext:example:audit",
            "urn:isbn:0451450523",
            "URN:example:a%20b/c",
        ] {
            assert!(Urn::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn what_only_looks_like_a_urn_is_not_one() {
        for text in [
            "",
            "urn",
            "urn:",
            "urn:forrst",
            "urn:forrst:",
            "urn::ext",
            "urn:f:ext",
            "urn:-forrst:ext",
            "urn:forrst-:ext",
            "urn:for rst:ext",
            "urn:forrst:ext atomicLock",
            "urn:forrst:ext:atomicLöck",
            "urn:forrst:ext\n",
            "https://forrst.dev/ext/atomic-lock",
            "atomicLock",
        ] {
            assert!(Urn::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn urn_has_at_most_255_bytes() {
        let fill = |length: usize| format!("urn:forrst:{}", "x".repeat(length - 11));
        assert!(Urn::parse(&fill(255)).is_ok());
        assert!(Urn::parse(&fill(256)).is_err());
    }
}
