//! Reading an outline when anything may stand anywhere.

use serde_json::value::RawValue;

use super::{CALL, ENVELOPE, EXTENSION, Outline, PROTOCOL, Part};
use crate::ExtensionRequest;
use crate::parse::envelope::Reader;
use crate::parse::members::{Named, Raw, each_element};
use crate::parse::path::Path;
use crate::raw::Kind;

pub(super) fn read<'a>(
    text: &'a str,
    reader: &mut Reader<'a>,
) -> Result<Outline<'a>, serde_json::Error> {
    let [protocol, id, call, context, extensions] =
        named(ENVELOPE, Path::Root, reader).read_any(text)?;
    Ok(Outline {
        protocol: protocol.try_map(|raw| object(raw, PROTOCOL, "protocol", reader))?,
        id,
        call: call.try_map(|raw| object(raw, CALL, "call", reader))?,
        context,
        extensions: extensions.try_map(|raw| extensions_of(raw, reader))?,
    })
}

fn named<'p, const N: usize>(
    names: [&'static str; N],
    path: Path<'p>,
    reader: &'p mut Reader<'_>,
) -> Named<'p, N> {
    Named {
        names,
        path,
        problems: &mut reader.problems,
    }
}

fn object<'a, const N: usize>(
    raw: &'a RawValue,
    names: [&'static str; N],
    name: &str,
    reader: &mut Reader<'a>,
) -> Result<Part<'a, [Raw<'a>; N]>, serde_json::Error> {
    Ok(match Kind::of(raw) {
        Kind::Object => {
            let path = Path::Root.member(name);
            Part::Open(named(names, path, reader).read_any(raw.get())?)
        }
        _ => Part::OfOtherKind(raw),
    })
}

fn extensions_of<'a>(
    raw: &'a RawValue,
    reader: &mut Reader<'a>,
) -> Result<Part<'a, Vec<ExtensionRequest<'a>>>, serde_json::Error> {
    if Kind::of(raw) != Kind::Array {
        return Ok(Part::OfOtherKind(raw));
    }
    let mut extensions = Vec::new();
    let path = Path::Root.member("extensions");
    each_element(raw, |index, element| {
        let path = path.element(index);
        if reader.is(Kind::Object, element, path) {
            let members = named(EXTENSION, path, reader).read_any(element.get())?;
            extensions.extend(reader.extension(members, path));
        }
        Ok(())
    })?;
    Ok(Part::Open(extensions))
}
