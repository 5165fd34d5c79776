//! The names of functions: dotted, or URNs. Those of the protocol itself are reserved.

use smol_str::SmolStr;

use crate::names::{InvalidName, check_length, name};

/// The name of a function: dotted, `orders.create`, or a URN, `urn:cline:forrst:ext:atomic-lock:fn:release`;
/// at most 255 bytes, and case matters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionName(SmolStr);

name!(FunctionName);

impl FunctionName {
    const MAX_BYTES: usize = 255;
    const WHAT: &'static str = "a function name";

    /// Whether the name is reserved for the protocol, so that no application may register it.
    pub fn is_reserved(&self) -> bool {
        self.0.starts_with("forrst.") || self.0.starts_with("urn:cline:forrst:")
    }

    fn check(text: &str) -> Result<(), InvalidName> {
        check_length(text, Self::WHAT, Self::MAX_BYTES)?;
        if is_dotted(text) || is_function_urn(text) {
            Ok(())
        } else {
            Err(InvalidName::Malformed {
                what: Self::WHAT,
                form: "dotted like `orders.create`, or a URN like `urn:acme:forrst:fn:create-order`",
            })
        }
    }
}

/// At least two segments, `<service>.<action>`.
fn is_dotted(text: &str) -> bool {
    text.contains('.') && text.split('.').all(is_segment)
}

fn is_segment(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('-')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

/// `urn:<vendor>:forrst:`, then `ext` or `fn`, then at least one word.
fn is_function_urn(text: &str) -> bool {
    let mut parts = text.split(':');
    parts.next() == Some("urn")
        && parts.next().is_some_and(is_word)
        && parts.next() == Some("forrst")
        && matches!(parts.next(), Some("ext" | "fn"))
        && parts.next().is_some_and(is_word)
        && parts.all(is_word)
}

fn is_word(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_lowercase())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dotted_names_and_urns_are_function_names() {
        for text in [
            "orders.create",
            "payments.charge",
            "billing.generateReport",
            "orders.get_by_customer",
            "_internal.Do-It",
            "a.b.c.d",
            "v2.2fast",
            "urn:cline:forrst:ext:atomic-lock:fn:release",
            "urn:cline:forrst:fn:ping",
            "urn:acme2:forrst:ext:x",
        ] {
            assert!(FunctionName::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn other_texts_are_not_function_names() {
        for text in [
            "",
            "charge",
            ".",
            "orders.",
            ".create",
            "orders..create",
            "orders.-create",
            "orders.cre ate",
            "orders.créate",
            "orders/create",
            "urn:cline:forrst:fn",
            "urn:cline:forrst:fn:",
            "urn:cline:forrst:fn:Ping",
            "urn:cline:forrst:fn:ping:",
            "urn:Cline:forrst:fn:ping",
            "urn:cline:other:fn:ping",
            "urn:cline:forrst:func:ping",
            "urn:forrst:ext:atomicLock",
            "URN:cline:forrst:fn:ping",
            "urn:2cline:forrst:fn:ping",
            "orders.create\n",
        ] {
            assert!(FunctionName::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn function_name_has_at_most_255_bytes() {
        assert!(FunctionName::parse(&format!("a.{}", "b".repeat(253))).is_ok());
        assert!(FunctionName::parse(&format!("a.{}", "b".repeat(254))).is_err());
    }

    #[test]
    fn only_the_protocol_s_own_prefixes_are_reserved() {
        let reserved = |text: &str| FunctionName::parse(text).unwrap().is_reserved();
        assert!(reserved("forrst.ping"));
        assert!(reserved("urn:cline:forrst:fn:ping"));
        assert!(reserved("urn:cline:forrst:ext:atomic-lock:fn:release"));
        assert!(!reserved("forrsty.ping"));
        assert!(!reserved("orders.forrst"));
        assert!(!reserved("urn:acme:forrst:fn:ping"));
        assert!(!reserved("urn:clines:forrst:fn:ping"));
    }
}
