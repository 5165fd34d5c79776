//! Where the parts of a request are, found in one of two ways that come to the same.
//!
//! A visitor must be told what to expect, and gives up for good where it finds something else. So the text is first read
//! straight, as the request that it should be, in a single pass. Only if that comes to nothing is it read again with care,
//! every part raw until its kind is known. What is wrong with the text, and whether it is JSON at all, is decided by the
//! careful reading alone.

mod careful;
mod straight;

use serde_json::value::RawValue;

use super::envelope::Reader;
use super::members::{Member, Raw};
use crate::ExtensionRequest;

/// The parts of a request, most of them raw.
#[derive(Default)]
pub(super) struct Outline<'a> {
    pub(super) protocol: Member<Part<'a, [Raw<'a>; 2]>>,
    pub(super) id: Raw<'a>,
    pub(super) call: Member<Part<'a, [Raw<'a>; 3]>>,
    pub(super) context: Raw<'a>,
    pub(super) extensions: Member<Part<'a, Vec<ExtensionRequest<'a>>>>,
}

/// A member that has parts of its own, unless it is of another kind than it must be.
pub(super) enum Part<'a, T> {
    Open(T),
    OfOtherKind(&'a RawValue),
}

const ENVELOPE: [&str; 5] = ["protocol", "id", "call", "context", "extensions"];
const PROTOCOL: [&str; 2] = ["name", "version"];
const CALL: [&str; 3] = ["function", "version", "arguments"];
const EXTENSION: [&str; 3] = ["urn", "options", "required"];

impl<'a> Outline<'a> {
    /// Reads all of a text that starts with `{` and is likely to be a request. An error says only that it is none.
    pub(super) fn read_straight(
        text: &'a str,
        reader: &mut Reader<'a>,
    ) -> Result<Self, serde_json::Error> {
        straight::read(text, reader)
    }

    /// Reads all of a text that starts with `{`. The only errors are of syntax.
    pub(super) fn read_carefully(
        text: &'a str,
        reader: &mut Reader<'a>,
    ) -> Result<Self, serde_json::Error> {
        careful::read(text, reader)
    }
}
