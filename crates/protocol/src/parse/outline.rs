//! Where the parts of a request are.
//!
//! One scan finds the members that a request can have, whatever their types. The types are checked afterwards.

use super::envelope::Reader;
use super::members::{Member, Raw, name_in, named};
use super::path::Path;
use crate::ExtensionRequest;
use crate::problems::Problems;
use crate::raw::Kind;
use crate::scan::{NotJson, Scanner};

/// The parts of a request, most of them raw.
#[derive(Default)]
pub(super) struct Outline<'a> {
    pub(super) protocol: Member<Part<'a, [Raw<'a>; 2]>>,
    pub(super) id: Raw<'a>,
    pub(super) call: Member<Part<'a, [Raw<'a>; 3]>>,
    pub(super) context: Raw<'a>,
    pub(super) extensions: Member<Part<'a, Vec<ExtensionRequest<'a>>>>,
}

/// A member that has parts of its own, or its text if it has another type than it must have.
pub(super) enum Part<'a, T> {
    Open(T),
    OtherType(&'a str),
}

impl<'a> Outline<'a> {
    /// Reads a text that starts with `{`.
    pub(super) fn read(text: &'a str, reader: &mut Reader<'a>) -> Result<Self, NotJson> {
        let mut scanner = Scanner::new(text);
        let mut outline = Self::default();
        let mut envelope = scanner.enter();
        while let Some(key) = scanner.next_key(&mut envelope)? {
            let Some(name) = name_in(&ENVELOPE, key) else {
                scanner.value()?;
                continue;
            };
            let path = Path::Root.member(name);
            match name {
                "protocol" => {
                    let protocol = object(&mut scanner, PROTOCOL, path, reader)?;
                    outline.protocol.put(protocol, path, &mut reader.problems);
                }
                "id" => outline.id.put(scanner.value()?, path, &mut reader.problems),
                "call" => {
                    let call = object(&mut scanner, CALL, path, reader)?;
                    outline.call.put(call, path, &mut reader.problems);
                }
                "context" => outline
                    .context
                    .put(scanner.value()?, path, &mut reader.problems),
                _ => {
                    let extensions = extensions(&mut scanner, path, reader)?;
                    outline
                        .extensions
                        .put(extensions, path, &mut reader.problems);
                }
            }
        }
        scanner.end()?;
        reader.has_unusual_keys = scanner.has_unusual_keys();
        Ok(outline)
    }
}

/// Which members an object has at the top level.
pub(super) fn has_members<const N: usize>(
    text: &str,
    names: [&'static str; N],
) -> Result<[bool; N], NotJson> {
    let mut scanner = Scanner::new(text);
    if scanner.peek() != Some(b'{') {
        return Err(NotJson);
    }
    let mut problems = Problems::default();
    let members = named(&mut scanner, &names, Path::Root, &mut problems)?;
    scanner.end()?;
    Ok(members.map(|member| !matches!(member, Member::Absent)))
}

const ENVELOPE: [&str; 5] = ["protocol", "id", "call", "context", "extensions"];
const PROTOCOL: [&str; 2] = ["name", "version"];
const CALL: [&str; 3] = ["function", "version", "arguments"];
const EXTENSION: [&str; 3] = ["urn", "options", "required"];

fn object<'a, const N: usize>(
    scanner: &mut Scanner<'a>,
    names: [&'static str; N],
    path: Path<'_>,
    reader: &mut Reader<'a>,
) -> Result<Part<'a, [Raw<'a>; N]>, NotJson> {
    Ok(match scanner.peek() {
        Some(b'{') => Part::Open(named(scanner, &names, path, &mut reader.problems)?),
        _ => Part::OtherType(scanner.value()?),
    })
}

fn extensions<'a>(
    scanner: &mut Scanner<'a>,
    path: Path<'_>,
    reader: &mut Reader<'a>,
) -> Result<Part<'a, Vec<ExtensionRequest<'a>>>, NotJson> {
    if scanner.peek() != Some(b'[') {
        return Ok(Part::OtherType(scanner.value()?));
    }
    let mut array = scanner.enter();
    let mut extensions = Vec::new();
    let mut index = 0;
    while scanner.has_next(&mut array)? {
        let path = path.element(index);
        let extension = object(scanner, EXTENSION, path, reader)?;
        reader.has_unusual_keys = scanner.has_unusual_keys();
        match extension {
            Part::Open(members) => extensions.extend(reader.extension(members, path)),
            Part::OtherType(raw) => reader.note_other_kind(Kind::Object, raw, path),
        }
        index += 1;
    }
    Ok(Part::Open(extensions))
}
